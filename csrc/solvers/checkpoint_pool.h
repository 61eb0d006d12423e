// The plans of a training step that are known and that none other beats, and what there is to choose from.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "solvers/checkpoint_plans.h"
#include "solvers/checkpoint_simulator.h"

namespace actcore {

struct PlanPool {
  // What may be chosen of a value.
  struct Option {
    uint8_t rank;
    int8_t form;
  };

  PlanPool(const TrainingStep& of_step, int64_t max_steps, double variance);

  // All is kept as it is.
  Assignment everything() const { return {std::vector<uint8_t>(step.values(), 0), {}}; }
  // Simulates a choice; `try_plan` also enters it in the front, unless another plan is at least as good, or else its
  // variance is too large: then it counts as one that fits nowhere.
  Usage measure(const Assignment& plan);
  Usage try_plan(const Assignment& plan);
  // How many plans without nesting there are, or `most` if there are as many.
  int64_t count_all(int64_t most) const;
  void try_all();
  // The plan with the fewest seconds among those that fit, if any does.
  const CheckpointPlan* best_within(int64_t budget) const;
  // So many budgets between the least and the largest peak of the front.
  std::vector<int64_t> budgets(int64_t count) const;

  // All values of an operator that there is a choice about.
  bool keeps_all(int32_t op, const Assignment& plan) const;
  // What is kept is so in the preferred form.
  void set(int32_t op, bool keep, Assignment& plan) const;
  void set_value(int32_t value, bool keep, Assignment& plan) const;
  double seconds_a_byte(int32_t op) const;

  // Enters a plan in the front, unless another one is at least as good.
  void enter(CheckpointPlan plan);
  bool is_beaten(const Usage& usage) const;

  // Makes a plan's choice what the simulation takes it for.
  void tidy(CheckpointPlan& plan);

  const TrainingStep& step;
  StepFacts facts;
  Simulator simulator;
  int64_t left;  // steps
  int64_t visit_cost;
  int64_t steps = 0;
  double variance;                              // the largest that a plan may have
  std::vector<std::vector<int8_t>> forms;       // of values: those that may be chosen
  bool has_forms = false;                       // any may
  std::vector<std::vector<Option>> options_of;  // of values: all that may be chosen without nesting
  std::vector<int32_t> changing;                // values that have more than one
  std::vector<int8_t> preferred;                // of values: the form in which `set` keeps them; empty: as they are
  std::vector<CheckpointPlan> front;            // the peak rises, the seconds fall

  std::vector<uint8_t> useful;               // of values: backward reads it, or what follows from it
  std::vector<int32_t> choices;              // values that may be kept or recomputed
  std::vector<int32_t> choosing;             // operators that make such values
  std::vector<std::vector<int32_t>> chosen;  // of operators: these values
  std::vector<std::vector<int32_t>> before,
      behind;  // of such operators: those that they read from, and that read from them
  std::vector<int64_t> chosen_bytes, wanted_bytes;  // of operators: of these values, and of those that backward reads
  double total_seconds = 0;

 private:
  void find_choices();
  void find_forms();
};

}  // namespace actcore
