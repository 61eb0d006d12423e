// What nested checkpoints take. Each value has a rank: 0, it is kept; 1, it is made again once and held until backward
// has read it; 2, it is made in passing wherever values of a lower rank need it, and for backward by itself.
//
// The operators that make values of rank 1 again fall into segments as those of checkpoint_step.h do, connected by the
// values that they hand to each other. When backward first needs one of its values, such an outer segment is repeated
// from values of rank 0, and of what it makes only values of rank 1 stay. Values of rank 2 that backward reads are made
// by inner segments, connected by values of rank 2 and repeated from lower ranks, the outer segments that they read
// from first. Without rank 2 that is what `Simulator` does.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "solvers/checkpoint_step.h"

namespace actcore {

class RankSimulator {
 public:
  // `facts`: of the step; it must outlive this.
  explicit RankSimulator(const Simulator& facts);

  // `ranks`: of each value; where there is no choice, the entry does not count.
  Usage run(const std::vector<uint8_t>& ranks);

  // Of the last run.
  uint8_t rank(size_t value) const { return ranks_[value]; }
  const std::vector<int64_t>& bytes() const { return bytes_; }  // the most during each event
  // Of operators: the first of the outer segment that repeats it, or -1.
  const std::vector<int32_t>& outer() const { return levels_[0].segments; }
  const std::vector<int32_t>& inner() const { return levels_[1].segments; }
  // Of a segment's first operator: the event at which it is repeated.
  const std::vector<int32_t>& outer_events() const { return levels_[0].events; }
  const std::vector<int32_t>& inner_events() const { return levels_[1].events; }
  // Of values: whether an inner segment reads it.
  bool read_inside(size_t value) const { return read_inside_[value]; }

 private:
  // The operators that are repeated in segments of a kind.
  struct Level {
    uint8_t rank = 0;                 // of what stays; what is of a higher rank is made in passing
    std::vector<int32_t> segments;    // of operators: the first of its segment, or -1
    std::vector<int32_t> events;      // of a segment's first operator
    std::vector<int32_t> next;        // of operators: the next one of its segment, or -1
    std::vector<int32_t> last;        // of a segment's first operator: its last one
    std::vector<int32_t> last_reads;  // of values: the last operator of the segment that reads it
    std::vector<uint8_t> needed;      // of values: read by an operator of the segment
  };
  struct Replay {
    Level* level;
    int32_t first;
  };

  void find_repeated();
  void find_segments(Level& level);
  void find_events();
  void add_lives();
  void add_replays(int32_t event);
  void add_fresh(Level& level, int32_t first, int32_t event);
  int64_t replay(const Level& level, int32_t first, int64_t& left_over) const;
  bool stays(const Level& level, int32_t value) const;
  static int32_t segment_of(Level& level, int32_t op);

  const Simulator& facts_;
  const TrainingStep& step_;
  std::array<Level, 2> levels_;
  std::vector<uint8_t> ranks_, read_inside_;
  std::vector<int32_t> ends_;
  std::vector<Replay> fresh_;
  std::vector<int64_t> bytes_;
};

}  // namespace actcore
