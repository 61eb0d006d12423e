// Which values of a training step are kept, so that its peak is low and what is recomputed takes little time: the
// plans that no other one beats in both.
//
// Few choices are all tried. Where there are more, plans come from four sources, all measured by the simulation of the
// step:
//   1. `CutSolver`, for prices of a second and bounds on what a segment makes at once;
//   2. the same for each of a row of budgets, with bounds that follow from it: a segment may take what is left by the
//   budget when it is repeated;
//   3. local search at each of these budgets: keep what there is room for, drop what is cheap to recompute and alive
//   at the peak;
//   4. nested checkpoints, made of these plans (checkpoint_nested.h).
// The plans do not depend on the budget that is asked for: a larger one never takes more seconds.
#pragma once

#include <cstdint>
#include <vector>

#include "solvers/checkpoint_step.h"

namespace actcore {

// What is chosen of each value.
struct Assignment {
  std::vector<uint8_t> ranks;  // see checkpoint_simulator.h
  std::vector<int8_t> forms;   // or -1; empty: all wait as they are
};

struct CheckpointPlan {
  Assignment chosen;  // as the simulation has it: what nothing recomputes is kept
  Usage usage;
  bool nested = false;
};

struct Plans {
  std::vector<CheckpointPlan> front;  // the peak rises, the seconds fall
  bool exact = false;                 // all choices without nesting were tried
  int64_t steps = 0;                  // simulated events, and states of `CutSolver`
};

// No plan has a larger variance than this.
Plans find_plans(const TrainingStep& step, int64_t max_steps, double variance);

// No choice has a lower peak, nested or not: what backward reads is there as it does. `variance`: where it is 0, only
// forms without noise count.
int64_t least_peak_bound(const TrainingStep& step, double variance);

// For each budget: no choice that fits it takes fewer seconds, nested or not: what is not there was repeated once at
// least, and what waits in a form was stored and restored.
std::vector<double> least_seconds_bounds(const TrainingStep& step, const std::vector<int64_t>& budgets,
                                         double variance);

}  // namespace actcore
