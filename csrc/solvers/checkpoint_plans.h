// Which values of a training step are kept, so that its peak is low and what is computed again takes little time: the
// plans that no other one beats in both.
//
// Few choices are all tried. Where there are more, plans come from four sources, all measured by the simulation of the
// step:
//   1. `CutSolver`, for prices of a second and bounds on what a segment makes at once;
//   2. the same for each of a row of budgets, with bounds that follow from it: a segment may take what is left by the
//   budget when it is repeated;
//   3. local search at each of these budgets: keep what there is room for, drop what is cheap to make again and alive
//   at the peak;
//   4. nested checkpoints, made of these plans (checkpoint_nested.h).
// The plans do not depend on the budget that is asked for: a larger one never takes more seconds.
#pragma once

#include <cstdint>
#include <vector>

#include "solvers/checkpoint_step.h"

namespace actcore {

struct CheckpointPlan {
  std::vector<uint8_t> kept;  // of values; those that nothing makes again count as kept
  std::vector<uint8_t> held;  // of values, where checkpoints are nested: those of rank 1; else empty
  Usage usage;
};

struct Plans {
  std::vector<CheckpointPlan> front;  // the peak rises, the seconds fall; the last one repeats nothing
  bool exact = false;                 // all choices without nesting were tried
  int64_t steps = 0;                  // simulated events, and states of `CutSolver`
};

Plans find_plans(const TrainingStep& step, int64_t max_steps);

// No choice of values has a lower peak, nested or not: what backward reads is there as it does.
int64_t least_peak_bound(const TrainingStep& step);

// For each budget: no choice of values that fits it takes fewer seconds, nested or not: what is not there was repeated
// once at least.
std::vector<double> least_seconds_bounds(const TrainingStep& step, const std::vector<int64_t>& budgets);

}  // namespace actcore
