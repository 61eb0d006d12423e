// A training step in numbers: operators of the forward pass, the values that they make, and the steps of backward that
// read some of them; and what a choice of values to keep takes in bytes at each moment, and in seconds.
//
// Events are the operators, in order, and then the steps of backward. What is not kept and still needed is made again
// from what is kept. The operators that do so fall into segments, connected by the values that they hand to each other;
// a segment is repeated as a whole when backward first reads one of its values. Its values that backward reads live
// until their last reader, the others until their last reader in the segment.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace actcore {

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

  size_t ops() const { return reads.size(); }
  size_t values() const { return nbytes.size(); }
  size_t events() const { return other.size(); }
};

struct Usage {
  int64_t peak = 0;
  int32_t event = 0;  // the first at which the peak is reached
  double seconds = 0;
};

// Simulates one step again and again, with memory of its own.
class Simulator {
 public:
  explicit Simulator(const TrainingStep& step);

  const TrainingStep& step() const { return step_; }
  // Of values: whether there is a choice. One that cannot be made again is kept, one that is overwritten is not.
  const std::vector<uint8_t>& optional() const { return optional_; }
  // The rank (see checkpoint_ranks.h) of a value that is to have this one.
  uint8_t rank_of(size_t value, uint8_t rank) const { return optional_[value] ? rank : forced_[value] ? 0 : 2; }
  const std::vector<uint8_t>& wanted() const { return wanted_; }  // read by backward
  const std::vector<int32_t>& producers() const { return producers_; }
  const std::vector<int32_t>& forward_ends() const { return forward_ends_; }
  const std::vector<int32_t>& last_reads() const {
    return last_reads_;
  }  // the last event of backward that reads it, or -1

  // `kept`: of each value; where there is no choice, the entry does not count.
  Usage run(const std::vector<uint8_t>& kept);

  // Of the last run.
  bool keeps(size_t value) const { return keeps_[value]; }
  const std::vector<int64_t>& bytes() const { return bytes_; }        // the most during each event
  const std::vector<uint8_t>& repeated() const { return repeated_; }  // of operators
  const std::vector<int32_t>& segments() const {
    return segments_;
  }  // of operators that are repeated: the segment's first
  const std::vector<int32_t>& replayed_at() const { return replayed_at_; }  // of a segment's first operator: the event
  const std::vector<int32_t>& ends() const { return ends_; }  // of values: the last event of life, but for replays

 private:
  void find_choices();
  void find_repeated();
  void find_lives();
  void add_replays(int32_t event);
  int64_t replay(int32_t first, int64_t& left_over);
  int32_t segment_of(int32_t op);

  const TrainingStep& step_;
  std::vector<int32_t> producers_, forward_ends_, last_reads_;
  std::vector<uint8_t> optional_, wanted_, forced_;

  std::vector<uint8_t> keeps_, needed_, repeated_;
  std::vector<int32_t> segments_, replayed_at_, ends_, next_, last_, last_in_segment_, fresh_;
  std::vector<int64_t> bytes_;
};

}  // namespace actcore
