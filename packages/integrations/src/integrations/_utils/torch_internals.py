"""The private names of torch that ``integrations`` uses. They stand here, and no other module uses one.

Torch promises nothing about them. If a version of torch lacks one, ``import integrations`` still works, and so does
everything that can do without it; what cannot raises an error with the name. ``NAMES`` is the table of them, with the
features that need them. They have torch's names without the underscore, some methods with the name of their class.

Private attributes of objects of torch are used where the objects are: ``_version`` and ``_base`` of a tensor,
``_cdata`` and ``_weak_ref`` of a storage, ``_schema`` of an operator, ``_sequence_nr``, ``_forward_cls`` and
``_raw_saved_*`` of a node, ``current_spec`` of one that redistributes a DTensor, ``_get_sequence_number_for_group`` of
a process group, ``_orig_mod``, ``dynamo_ctx`` and ``_get_fsdp_state`` of a module, and the context in which a function
of ``torch.compile`` finds its backend.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import CodeType, FrameType, FunctionType
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor
from torch.autograd.graph import Node

from integrations._utils.torch_names import NAMES as NAMES
from integrations._utils.torch_names import Missing, bound, later, noted

_ANY = "a compressed model"
_PLANS = "a plan"
_CAPTURE = "the capture of a training step"
_ATTENTION = "attention that backward recomputes"
_COMPILED = "compression under torch.compile"
_QMODULES = "a layer of integrations.qmodules"
_FEWBIT = "a layer of integrations.fewbit"
_FORECAST = "a forecast"
_LOSS = "a loss in chunks"

# ---- autograd: its hooks, its graph, and the backward that runs. Of these torch lets nobody ask, or only set them ----

HookPair = tuple[Callable[[Any], Any], Callable[[Any], Any]]
top_saved_tensors_default_hooks: Callable[[bool], HookPair | None] = bound(
    "torch._C._autograd._top_saved_tensors_default_hooks", _ANY
)
# torch.autograd.graph.saved_tensors_hooks pops whichever pair is on top.
push_saved_tensors_default_hooks: Callable[[Callable[[Any], Any], Callable[[Any], Any]], None] = bound(
    "torch._C._autograd._push_saved_tensors_default_hooks", _ANY
)
pop_saved_tensors_default_hooks: Callable[[], None] = bound("torch._C._autograd._pop_saved_tensors_default_hooks", _ANY)
current_graph_task_id: Callable[[], int] = bound("torch._C._current_graph_task_id", "a compressed model in backward")
get_current_graph_task_keep_graph: Callable[[], bool] = bound(
    "torch._C._autograd._get_current_graph_task_keep_graph", _PLANS
)
current_autograd_node: Callable[[], Node | None] = bound("torch._C._current_autograd_node", _CAPTURE)
will_engine_execute_node: Callable[[Node], bool] = bound(
    "torch._C._will_engine_execute_node", "a backward of a compressed model with create_graph=True"
)
get_sequence_nr: Callable[[], int] = bound("torch._C._autograd._get_sequence_nr", "a plan, or an adaptive level")
# There is no public hook for the end of a backward.
queue_callback: Callable[[Callable[[], object]], None] = bound(
    "torch.autograd.Variable._execution_engine.queue_callback", "a level that learns from each backward"
)
# torch.set_grad_enabled makes an object for each call.
set_grad_enabled: Callable[[bool], None] = bound("torch._C._set_grad_enabled", _PLANS)
profiler_enabled: Callable[[], bool] = bound("torch._C._autograd._profiler_enabled", _ANY)
# Torch calls it for a tensor that gets another history, through the active modes, while it holds a view's lock: code
# that then asks the view for its history never returns.
RESET_HOOKS: Callable[..., Any] = bound("torch.Tensor._backward_hooks.__set__", _ANY)
CheckpointFrame: Any = bound("torch.utils.checkpoint._CheckpointFrame", "a checkpoint inside of a model", ())
storage_expired: Callable[[int], bool] = bound("torch.UntypedStorage._expired", _ANY)
storage_free_weak_ref: Callable[[int], None] = bound("torch.UntypedStorage._free_weak_ref", _ANY)

# ---- transforms: torch.func, forward-mode differentiation, tracing ----

peek_interpreter_stack: Callable[[], Any] = bound("torch._C._functorch.peek_interpreter_stack", _ANY)
get_tracing_state: Callable[[], Any] = bound("torch._C._get_tracing_state", _ANY)
# The number changes, so it is read from its module each time.
_LEVEL = noted("torch.autograd.forward_ad._current_level", _ANY, spared=False)
if TYPE_CHECKING or _LEVEL.is_there:
    from torch.autograd import forward_ad as _forward_ad
else:
    _forward_ad = Missing(_LEVEL)


def in_forward_mode() -> bool:
    """Whether forward-mode differentiation is on."""
    return _forward_ad._current_level >= 0


# ---- modes, and what they do not see ----

DisableTorchFunction: Callable[[], AbstractContextManager[None]] = bound("torch._C.DisableTorchFunction", _ANY)
DisableTorchFunctionSubclass: Callable[[], AbstractContextManager[None]] = bound(
    "torch._C.DisableTorchFunctionSubclass", _LOSS
)
make_wrapper_subclass: Callable[..., Any] = bound("torch.Tensor._make_wrapper_subclass", _LOSS)
len_torch_function_stack: Callable[[], int] = bound("torch._C._len_torch_function_stack", _ANY)
len_torch_dispatch_stack: Callable[[], int] = bound("torch._C._len_torch_dispatch_stack", _ANY)
_dispatch_mode: Callable[[Any], Any] = bound("torch._C._get_dispatch_mode", _ANY)
PROXY: Any = bound("torch._C._TorchDispatchModeKey.PROXY", _ANY)
# Torch's function takes keys alone, and says of what stands for a missing one that it is none.
get_dispatch_mode: Callable[[Any], Any] = PROXY if isinstance(PROXY, Missing) else _dispatch_mode
_FAKE: Any = bound("torch._C._TorchDispatchModeKey.FAKE", _FORECAST)


def fake_mode() -> Any:
    """The mode of fake tensors that is active; ``None`` if none is."""
    return _FAKE() if isinstance(_FAKE, Missing) else _dispatch_mode(_FAKE)


_SHARDINGS = noted("torch.distributed.tensor._sharding_prop", _PLANS, spared=True).path


def is_propagating_shardings() -> bool:
    """Whether a caller looks for the placements and shapes of a DTensor operator's results. Looks at all frames."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__") != _SHARDINGS:
        frame = frame.f_back
    return frame is not None


_AROUND_MODES = "integrations.", "torch._dynamo.", "torch._compile"


def is_in_collective() -> bool:
    """Whether a function of ``torch.distributed`` runs the operator for which a mode calls this."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__", "").startswith(_AROUND_MODES):
        frame = frame.f_back
    return frame is not None and frame.f_globals.get("__name__") == "torch.distributed.distributed_c10d"


AutoDispatchBelowAutograd: Callable[[], AbstractContextManager[Any]] = bound(
    "torch._C._AutoDispatchBelowAutograd", _PLANS
)
DisableAutocast: Callable[[], AbstractContextManager[Any]] = bound("torch._C._DisableAutocast", _PLANS)
ExcludeDispatchKeyGuard: Callable[[Any], AbstractContextManager[Any]] = bound(
    "torch._C._ExcludeDispatchKeyGuard", _CAPTURE
)
SetExcludeDispatchKeyGuard: Callable[[Any, bool], AbstractContextManager[Any]] = bound(
    "torch._C._SetExcludeDispatchKeyGuard", _PLANS
)
DispatchKey: Any = bound("torch._C.DispatchKey", _PLANS)
DispatchKeySet: Any = bound("torch._C.DispatchKeySet", _CAPTURE)

# ---- settings. torch.is_autocast_enabled asks of one type of device; torch.backends.mkldnn has no getter ----

is_any_autocast_enabled: Callable[[], bool] = bound("torch._C._is_any_autocast_enabled", _CAPTURE)
dispatch_has_kernel_for_dispatch_key: Callable[[str, str], bool] = bound(
    "torch._C._dispatch_has_kernel_for_dispatch_key", "a compressed model under autocast"
)
get_mkldnn_enabled: Callable[[], bool] = bound("torch._C._get_mkldnn_enabled", _PLANS)
set_mkldnn_enabled: Callable[[bool], None] = bound("torch._C._set_mkldnn_enabled", "a plan with measured times")

# ---- operators ----

get_registered_operators: Callable[[], list[str]] = bound(
    "torch._C._dispatch_get_all_op_names", "the check of a name in add_rule", list
)
conj: Callable[[Tensor], Tensor] = bound("torch._conj", _PLANS)
neg_view: Callable[[Tensor], Tensor] = bound("torch._neg_view", _PLANS)
fused_sdp_choice: Callable[..., int] = bound("torch._fused_sdp_choice", _ATTENTION)
cur_sdpa_kernel_backends: Callable[..., list[Any]] = bound("torch.nn.attention._cur_sdpa_kernel_backends", _ATTENTION)
softmax_backward_data: Callable[..., Tensor] = bound("torch._softmax_backward_data", _ATTENTION)
safe_softmax: Callable[..., Tensor] = bound("torch.ops.aten._safe_softmax.default", _ATTENTION)
scaled_dot_product_attention_math: Callable[..., tuple[Tensor, Tensor]] = bound(
    "torch.ops.aten._scaled_dot_product_attention_math.default", _ATTENTION
)
scaled_dot_product_flash_attention_for_cpu: Callable[..., Any] = bound(
    "torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default", _ATTENTION
)
scaled_dot_product_flash_attention_for_cpu_backward: Callable[..., Any] = bound(
    "torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default", _ATTENTION
)
scaled_dot_product_flash_attention: Callable[..., Any] = bound(
    "torch.ops.aten._scaled_dot_product_flash_attention", "a forecast for a GPU"
)
scaled_dot_product_efficient_attention: Callable[..., Any] = bound(
    "torch.ops.aten._scaled_dot_product_efficient_attention", "a forecast for a GPU"
)
fused_rms_norm: Callable[..., Any] = bound("torch.ops.aten._fused_rms_norm", _FEWBIT)
native_batch_norm_legit: Any = bound("torch.ops.aten._native_batch_norm_legit", _QMODULES)
batch_norm_impl_index: Callable[..., Any] = bound("torch.ops.aten._batch_norm_impl_index", _QMODULES)
batch_norm_impl_index_backward: Callable[..., Any] = bound("torch.ops.aten._batch_norm_impl_index_backward", _QMODULES)
trilinear: Any = bound("torch.ops.aten._trilinear", _PLANS, None)
adaptive_avg_pool2d: Callable[..., Any] = bound("torch.ops.aten._adaptive_avg_pool2d", _QMODULES)
adaptive_avg_pool2d_backward: Callable[..., Any] = bound("torch.ops.aten._adaptive_avg_pool2d_backward", _QMODULES)

# ---- modules ----

# The code that runs a module's hooks and its forward. Which module runs is read off frames, and nothing works without.
MODULE_CALL: CodeType = noted("torch.nn.Module._call_impl.__code__", _ANY, spared=False).get()
sync_norm_check_input_dim: Callable[..., None] = bound("torch.nn.SyncBatchNorm._check_input_dim", _QMODULES)
sync_norm_check_channels: Callable[..., None] = bound(
    "torch.nn.SyncBatchNorm._check_non_zero_input_channels", _QMODULES
)
get_active_ddp_module: Callable[[], Any] = bound(
    "torch.nn.parallel.DistributedDataParallel._get_active_ddp_module", "an adaptive level on several ranks"
)
ScriptMethod: Any = bound("torch._C.ScriptMethod", "a checkpoint inside of a model", ())
_WORLD = later("torch.distributed.distributed_c10d._world", "a plan with few bits on several ranks", None)
ALL_GATHER: Any = bound("torch.ops._c10d_functional.all_gather_into_tensor", "lean in sequence parallel", None)
_RESOLVE = later("torch.distributed.distributed_c10d._resolve_process_group", _LOSS)
noted("torch.nn.utils.parametrize._cache", _CAPTURE, spared=True)
noted("torch.nn.modules.module._global_forward_hooks", _CAPTURE, spared=True)


def process_group(name: str) -> Any:
    """The process group of a name, which an operator can take in place of the group."""
    return _RESOLVE()(name)


def collectives_of_groups() -> list[int] | None:
    """How many collectives each process group has started; ``None`` if one does not count them."""
    world = _WORLD()
    try:
        return None if world is None else [one._get_sequence_number_for_group() for one in list(world.pg_map)]
    except (AttributeError, RuntimeError):  # not every backend has numbers
        return None


def kept_for_all_modules() -> list[dict[Any, Any]]:
    """What torch keeps for all modules of the process: hooks, and results of parametrizations."""
    hooks = [value for name, value in vars(torch.nn.modules.module).items() if name.startswith("_global_")]
    cache = getattr(torch.nn.utils.parametrize, "_cache", None)  # it is another object each time that caching ends
    return [one for one in (cache, *hooks) if isinstance(one, dict)]


# ---- torch.compile. What torch._dynamo has is asked for when somebody has imported it, which takes a second ----

DYNAMO = noted("torch._dynamo", _COMPILED, spared=True).path
INDUCTOR = noted("torch._inductor", _COMPILED, spared=True).path
# Its log warns of in-place operators.
WRAP = noted("torch._higher_order_ops.wrap", "a plan under torch.compile", spared=True).path
tracing_context: Callable[[], Any] = bound("torch._guards.TracingContext.try_get", _COMPILED)
# Frames can be skipped if torch has all four.
FrameExecStrategy: Any = bound("torch._C._dynamo.eval_frame._FrameExecStrategy", _COMPILED, None)
FrameAction: Any = bound("torch._C._dynamo.eval_frame._FrameAction", _COMPILED, None)
set_code_exec_strategy: Any = bound("torch._C._dynamo.eval_frame.set_code_exec_strategy", _COMPILED, None)
get_eval_frame_callback: Any = bound("torch._C._dynamo.eval_frame.get_eval_frame_callback", _COMPILED, None)
# Forgets what was compiled of a code object.
reset_code: Callable[[CodeType], None] | None = bound("torch._C._dynamo.eval_frame.reset_code", _COMPILED, None)
optimized_module = later("torch._dynamo.OptimizedModule", _COMPILED, ())


def find_backend(compiled: Any) -> Any:
    """Return what compiles a module that ``torch.compile`` made, or a function; ``None`` if torch does not tell."""
    context = getattr(compiled, "dynamo_ctx", None)
    if context is None and isinstance(compiled, FunctionType):
        context = inspect.getclosurevars(compiled).nonlocals.get("self")
    return getattr(context, "callback", None)


callback_handler = later("torch._dynamo.callback_handler", _COMPILED, None)
dynamo_counters = later("torch._dynamo.utils.counters", _COMPILED, None)
dynamo_config = later("torch._dynamo.config", _COMPILED, None)
TRACE_AUTOGRAD = "trace_autograd_ops"  # a setting in it
noted(f"torch._dynamo.config.{TRACE_AUTOGRAD}", _COMPILED, spared=True)
instruction_translator = later("torch._dynamo.symbolic_convert.InstructionTranslator", _COMPILED)
guard_builder = later("torch._dynamo.guards.GuardBuilder", _COMPILED)
install_guard = later("torch._dynamo.guards.install_guard", _COMPILED)
attr_source = later("torch._dynamo.source.AttrSource", _COMPILED)
functorch_config = later("torch._functorch.config", _COMPILED)
HOOKS_FILTERING = "saved_tensors_hooks_filtering_mode"  # a setting in it
noted(f"torch._functorch.config.{HOOKS_FILTERING}", _COMPILED, spared=True)
# What inductor divides a joint graph with; before torch 2.11 it asks its own partitioner alone.
inductor_config = later("torch._inductor.config", _COMPILED, None)
custom_partitioner_fn = later("torch._inductor.custom_graph_pass.CustomPartitionerFn", _COMPILED, None)
REUSE, AFTER_FUSION = "allow_buffer_reuse", "_post_fusion_custom_pass"  # settings in it
noted(f"torch._inductor.config.{REUSE}", _COMPILED, spared=True)
noted(f"torch._inductor.config.{AFTER_FUSION}", _COMPILED, spared=True)
custom_scheduler_pass = later("torch._inductor.custom_graph_pass.CustomSchedulerPass", _COMPILED, None)
# What inductor asks which operators to join: its choices are in it.
inductor_virtualized = later("torch._inductor.virtualized.V", _COMPILED, None)
noted("torch._inductor.choices.InductorChoices.can_fuse_horizontal", _COMPILED, spared=True)
# What writes the calls of operators into inductor's code, by their names there.
custom_extern_kernel_codegen = later(
    "torch._inductor.codegen.custom_extern_kernel_codegen.CUSTOM_EXTERN_KERNEL_CODEGEN", _COMPILED, None
)
min_cut_partition = later("torch._functorch.partitioners.min_cut_rematerialization_partition", _COMPILED)
saved_tensor_hook_context = later(
    "torch._functorch._aot_autograd.graph_compile._get_saved_tensor_hook_context", _COMPILED
)

Function = TypeVar("Function", bound=Callable[..., Any])


def constant_when_traced(function: Function) -> Function:
    """A decorator: while ``torch.compile`` traces, it calls the function and takes the result for a constant.

    ``torch.compiler.assume_constant_result`` sets the same mark, and imports ``torch._dynamo`` for it.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


# ---- what annotations and subclasses take as types, or whose own types are more than a Callable says ----

if TYPE_CHECKING:
    from torch._ops import OpOverload as OpOverload
    from torch._subclasses.fake_tensor import DataDependentOutputException as DataDependentOutputException
    from torch._subclasses.fake_tensor import DynamicOutputShapeException as DynamicOutputShapeException
    from torch._subclasses.fake_tensor import FakeTensor as FakeTensor
    from torch._subclasses.fake_tensor import FakeTensorMode as FakeTensorMode
    from torch._subclasses.fake_tensor import unset_fake_temporarily as unset_fake_temporarily
    from torch._subclasses.functional_tensor import FunctionalTensor as FunctionalTensor
    from torch.nn.modules.batchnorm import _BatchNorm
    from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode
    from torch.utils._python_dispatch import _disable_current_modes
    from torch.utils._python_dispatch import is_traceable_wrapper_subclass as is_traceable_wrapper_subclass
    from torch.utils._pytree import tree_flatten as tree_flatten
    from torch.utils._pytree import tree_leaves as tree_leaves
    from torch.utils._pytree import tree_map as tree_map
    from torch.utils._pytree import tree_map_only as tree_map_only

    BatchNorm = _BatchNorm
    disable_current_modes = _disable_current_modes
else:

    class _NeverRaised(Exception):
        """In the place of an exception that torch does not have."""

    _FAKES = "torch._subclasses.fake_tensor"
    OpOverload = bound("torch._ops.OpOverload", _PLANS)
    DataDependentOutputException = bound(f"{_FAKES}.DataDependentOutputException", _FORECAST, _NeverRaised)
    DynamicOutputShapeException = bound(f"{_FAKES}.DynamicOutputShapeException", _FORECAST, _NeverRaised)
    FakeTensor = bound(f"{_FAKES}.FakeTensor", _ANY)
    FakeTensorMode = bound(f"{_FAKES}.FakeTensorMode", _CAPTURE)
    unset_fake_temporarily = bound(f"{_FAKES}.unset_fake_temporarily", _CAPTURE)
    FunctionalTensor = bound("torch._subclasses.functional_tensor.FunctionalTensor", "a plan under torch.compile")
    BatchNorm = bound("torch.nn.modules.batchnorm._BatchNorm", _QMODULES)
    TorchDispatchMode = bound("torch.utils._python_dispatch.TorchDispatchMode", _PLANS)
    disable_current_modes = bound("torch.utils._python_dispatch._disable_current_modes", _PLANS)
    is_traceable_wrapper_subclass = bound("torch.utils._python_dispatch.is_traceable_wrapper_subclass", _ANY)
    tree_flatten = bound("torch.utils._pytree.tree_flatten", _CAPTURE)
    tree_leaves = bound("torch.utils._pytree.tree_leaves", _CAPTURE)
    tree_map = bound("torch.utils._pytree.tree_map", _CAPTURE)
    tree_map_only = bound("torch.utils._pytree.tree_map_only", _ANY)
