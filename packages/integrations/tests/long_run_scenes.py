"""What a long run does, scene after scene: each trains some steps in one way and leaves the models as they were."""

import copy
import pickle
import threading
import warnings
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from long_run_nets import Images, Segments, Shapes, Words, layers

import actcore
import integrations
from integrations import qmodules

LEVELS = "L1", "lean", "L1.1", "L1.2", "L2", "L0"


class Interrupted(Exception):
    """What a user's code raises now and then."""


class Run:
    """One process's models, of which some live as long as it does, and the steps that it has taken.

    Attributes:
        shapes: where inputs come from.
        steps: how many optimizer's steps each scene takes.
        taken: all steps so far.
    """

    def __init__(self, steps, shapes):
        torch.manual_seed(0)
        self.steps, self.taken, self._seed = steps, 0, 0
        self.shapes = Shapes(torch.Generator().manual_seed(1), shapes)
        self.images, self.words, self.rows, self.segments = Images(), Words(), layers(), Segments()
        self._unseeded = 0  # forwards at seed 0
        self.compiled = torch.compile(layers(), backend="aot_eager", dynamic=True)

    def seed(self):
        """One that nobody had: what begins anew at one seed draws the same noise again, which is promised."""
        self._seed += 1
        return self._seed

    @contextmanager
    def going_on(self, model):
        """A block for a compressed model at seed 0, which goes on from the noise that models have had at that seed."""
        handle = integrations.compression(model)
        handle.step = self._unseeded
        yield handle
        self._unseeded = handle.step
        integrations.restore_model(model)

    def loss(self, model):
        if isinstance(model, Images):
            x, labels = self.shapes.images()
            return F.cross_entropy(model(x), labels)
        if isinstance(model, Words):
            tokens, following = self.shapes.words()
            return F.cross_entropy(model(tokens).flatten(0, 1), following.flatten())
        return model(self.shapes.rows()).square().mean()

    def step(self, model, optimizer=None):
        loss = self.loss(model)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        (optimizer or torch.optim.SGD(model.parameters(), 0.01)).step()
        model.zero_grad()
        assert loss.isfinite()
        self.taken += 1

    def train(self, model, steps=None):
        optimizer = torch.optim.Adam(model.parameters(), 1e-4)
        for _ in range(self.steps if steps is None else steps):
            self.step(model, optimizer)
        model.zero_grad()

    def evaluate(self, model):
        model.eval()
        with torch.no_grad():
            self.loss(model)
        self.loss(model).backward()  # with gradients, as attacks and saliency maps take them
        model.train().zero_grad()


def levels_switched(run):
    for number, level in enumerate(LEVELS):
        model = run.images if number % 2 else run.words
        integrations.compress_model(model, level, seed=run.seed())
        run.train(model, -(-run.steps // len(LEVELS)))
        run.evaluate(model)
        integrations.compression(model).report()
        integrations.restore_model(model)


def adaptive(run):
    """A level that measures itself, is measured, monitored, saved and loaded."""
    model = run.images
    integrations.compress_model(model, "L2.2", adapt_interval=20, seed=run.seed())
    handle, kept = integrations.compression(model), run.shapes.images()

    def closure():
        model.zero_grad()
        F.cross_entropy(model(kept[0]), kept[1]).backward()

    handle.monitor(closure, every=25, bound=None)
    run.train(model, run.steps // 2)
    handle.adapt(closure)
    handle.gradient_error(closure)
    str(handle.plan), handle.report(closure), run.evaluate(model)
    handle.load_state_dict(pickle.loads(pickle.dumps(handle.state_dict())))
    run.train(model, run.steps // 2)
    integrations.restore_model(model)


def blocks(run):
    """One for each step, of changing levels, of which some are left by an exception."""
    seeds = {level: run.seed() for level in LEVELS}
    for number in range(run.steps):
        level = LEVELS[number % len(LEVELS)]
        model = run.words if number % 2 else run.images
        try:
            with integrations.compress(model, level, seed=seeds[level]) as handle:
                run.step(model)
                if number % 7 == 6:
                    raise Interrupted
        except Interrupted:
            handle.report()


def plans_made_again(run):
    """Within a memory, and by recomputation alone; larger inputs than the plan is for come in between."""
    for options in ({"memory": 0.75}, {"checkpoint": 0.7, "level": "L1"}):
        integrations.compress_model(run.rows, **options)
        with run.going_on(run.rows) as handle:
            run.train(run.rows, run.steps // 2)
            run.evaluate(run.rows)
            handle.report()


def exchanged_layers(run):
    """Q-layers, few-bit activations and sketches, of a copy that goes with the scene."""
    for options in ({"layers": {"level": "L3", "seed": run.seed()}}, {"activations": "fewbit", "linear": 0.5}):
        model = copy.deepcopy(run.images)
        integrations.compress_model(model, "L1", seed=run.seed(), **options)
        run.train(model, run.steps // 2)
        run.evaluate(model)
        integrations.restore_model(model)
    model = qmodules.QModule(copy.deepcopy(run.images), level="L2", seed=run.seed())
    run.step(model)
    qmodules.restore_model(model)


def chunked_loss(run):
    integrations.compress_model(run.words, "lean", loss={"head": "head"}, seed=run.seed())
    run.train(run.words)
    integrations.restore_model(run.words)


def compiled(run):
    """A function that is compiled once for sizes that change, of a model at two levels, and of the same as it is.

    A level and its seed are constants of compiled code, so that these stay the same.
    """
    for level in ("L1", "L1.2"):
        integrations.compress_model(run.compiled, level)
        with run.going_on(run.compiled):
            run.train(run.compiled, run.steps // 2)
            run.evaluate(run.compiled)
    run.train(run.compiled, 2)


def exceptions(run):
    """In the forward, in backward, in a hook, and a loss that nobody differentiates."""

    def interrupt(*given):
        raise Interrupted

    integrations.compress_model(run.images, "L1", seed=run.seed())
    for number in range(run.steps):
        hook = run.images.head[1].register_forward_hook(interrupt) if number % 3 == 0 else None
        try:
            output = run.images(run.shapes.images()[0])
            if number % 3 == 1:
                output.register_hook(interrupt)
                output.sum().backward()
            elif number % 3 == 2:
                run.images(torch.ones(3, 3))
        except (Interrupted, RuntimeError):
            pass
        if hook is not None:
            hook.remove()
        run.step(run.images)
    integrations.restore_model(run.images)


def threads_and_copies(run):
    """Each step in a thread of its own, which ends; copies and pickles that are trained and dropped."""
    integrations.compress_model(run.images, "L1", seed=run.seed())
    for number in range(run.steps):
        model = run.images
        if number % 5 == 0:
            handle = integrations.compression(model)
            model = copy.deepcopy(model) if number % 2 else pickle.loads(pickle.dumps(model))
            handle.step += 1  # which the copy goes on from, so that it draws what the original would have drawn
        thread = threading.Thread(target=run.step, args=(model,))
        thread.start()
        thread.join()
    integrations.restore_model(run.images)


def checkpoints(run):
    """Torch's own, whose inputs are rounded."""
    integrations.compress_model(run.segments, "L1", checkpoint_bits=4, seed=run.seed())
    run.train(run.segments)
    integrations.restore_model(run.segments)


def four_bits(saved):
    return actcore.GroupAffine(bits=4)


def core_alone(run):
    """Saved-tensor hooks of actcore, whose streams go on from block to block."""
    for _ in range(run.steps):
        with actcore.saved_tensors(four_bits):
            run.step(run.rows)


SCENES = (
    levels_switched,
    adaptive,
    blocks,
    plans_made_again,
    exchanged_layers,
    chunked_loss,
    compiled,
    exceptions,
    threads_and_copies,
    checkpoints,
    core_alone,
)


def play(run, scenes=SCENES):
    """All scenes once."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # models as small as these are often stored in no fewer bytes
        for scene in scenes:
            scene(run)
