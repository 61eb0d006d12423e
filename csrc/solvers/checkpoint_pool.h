// The plans of a training step that are known and that none other beats, and what there is to choose from.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "solvers/checkpoint_plans.h"
#include "solvers/checkpoint_simulator.h"

namespace actcore {

struct PlanPool {
  PlanPool(const TrainingStep& of_step, int64_t max_steps);

  // Simulates a choice of values; `try_plan` also enters it in the front, unless another plan is at least as good.
  Usage measure(const std::vector<uint8_t>& kept);
  Usage try_plan(const std::vector<uint8_t>& kept);
  void try_all();
  // The plan with the fewest seconds among those that fit, if any does.
  const CheckpointPlan* best_within(int64_t budget) const;

  // All values of an operator that there is a choice about.
  bool keeps_all(int32_t op, const std::vector<uint8_t>& kept) const;
  void set(int32_t op, bool keep, std::vector<uint8_t>& kept) const;
  double seconds_a_byte(int32_t op) const;

  // Enters a plan with nested checkpoints, unless another one is at least as good.
  void enter(CheckpointPlan plan);

  // What nothing makes again counts as kept.
  void tidy(CheckpointPlan& plan);

  const TrainingStep& step;
  StepFacts facts;
  Simulator simulator;
  int64_t left;  // steps
  int64_t visit_cost;
  int64_t steps = 0;
  std::vector<CheckpointPlan> front;  // the peak rises, the seconds fall

  std::vector<uint8_t> useful;               // of values: backward reads it, or what follows from it
  std::vector<int32_t> choices;              // values that may be kept or made again
  std::vector<int32_t> choosing;             // operators that make such values
  std::vector<std::vector<int32_t>> chosen;  // of operators: these values
  std::vector<std::vector<int32_t>> before,
      behind;  // of such operators: those that they read from, and that read from them
  std::vector<int64_t> chosen_bytes, wanted_bytes;  // of operators: of these values, and of those that backward reads
  double total_seconds = 0;

 private:
  void find_choices();
  Usage run(const std::vector<uint8_t>& kept);

  std::vector<uint8_t> ranks_;
};

}  // namespace actcore
