// A training step in numbers: operators of the forward pass, the values that they make, and the steps of backward that
// read some of them; and what follows from that whatever waits for backward.
//
// Events are the operators, in order, and then the steps of backward.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace actcore {

// A way for a value to wait for backward other than as it is: quantised, as a mask, on the host.
struct Form {
  int64_t held;      // bytes while it waits
  int64_t restored;  // bytes of what is made of it where it is read
  int64_t passing;   // bytes that storing takes beside
  double store_seconds;
  double restore_seconds;  // each time
  double noise;            // variance of its rounding, relative to the value's mean square
  bool serves;             // whether an operator that is repeated may read it
};

struct TrainingStep {
  // Of values.
  std::vector<int64_t> nbytes;
  std::vector<int32_t> reuses;  // the value whose memory it takes over (an operator that works in place), or -1
  std::vector<int32_t> until;   // the event up to which it is alive whatever is kept, or -1; to the last one: kept
  // Of operators. Values are numbered in the order in which they are made; reads come before.
  std::vector<std::vector<int32_t>> reads;
  std::vector<std::vector<int32_t>> makes;
  std::vector<double> seconds;
  std::vector<uint8_t> repeatable;
  std::vector<int64_t> scratch;  // bytes while it runs, in forward and when repeated
  // Of the steps of backward.
  std::vector<std::vector<int32_t>> backward;  // values that each reads
  std::vector<int64_t> other;                  // of events: bytes of what is no value, whatever is kept
  // Of values.
  std::vector<std::vector<Form>> forms;  // at most 127 each
  std::vector<double> weights;           // square of the gradient's relative error for a noise of 1
  std::vector<int64_t> aside;            // bytes that the forward stores of it if it is recomputed
  std::vector<int32_t> stored_at;        // the operator after which its form is stored, or -1
  std::vector<uint8_t> formed;           // whether it waits in its first form where it is to wait as it is

  size_t ops() const { return reads.size(); }
  size_t values() const { return nbytes.size(); }
  size_t events() const { return other.size(); }
};

struct Usage {
  int64_t peak = 0;
  int32_t event = 0;  // the first at which the peak is reached
  double seconds = 0;
  double variance = 0;  // square of the gradient's relative error
};

// What a step says about its values before anything is chosen.
class StepFacts {
 public:
  explicit StepFacts(const TrainingStep& step);

  const TrainingStep& step() const { return step_; }
  // Of values: whether it may be kept and may be recomputed. One that cannot be recomputed is kept, one that is
  // overwritten is not.
  const std::vector<uint8_t>& optional() const { return optional_; }
  // The rank (see checkpoint_simulator.h) of a value that is to have this one.
  uint8_t rank_of(size_t value, uint8_t rank) const { return optional_[value] ? rank : forced_[value] ? 0 : 2; }
  const std::vector<uint8_t>& wanted() const { return wanted_; }  // read by backward
  const std::vector<int32_t>& producers() const { return producers_; }
  // The last event at which forward or the caller has it.
  const std::vector<int32_t>& forward_ends() const { return forward_ends_; }
  // The last event of backward that reads it, or -1.
  const std::vector<int32_t>& last_reads() const { return last_reads_; }

 private:
  void find_choices();

  const TrainingStep& step_;
  std::vector<int32_t> producers_, forward_ends_, last_reads_;
  std::vector<uint8_t> optional_, wanted_, forced_;
};

}  // namespace actcore
