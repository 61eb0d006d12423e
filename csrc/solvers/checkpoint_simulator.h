// What a choice takes, in bytes at each moment and in seconds. Each value has a rank: 0, it is kept; 1, it is recomputed
// once and held until backward has read it; 2, it is made in passing wherever values of a lower rank need it, and for
// backward by itself. And each value that waits for backward may do so in a form, which takes other bytes.
//
// The operators that recompute values of rank 1 fall into segments, connected by the values that they hand to each
// other. When backward first needs one of its values, such an outer segment is repeated as a whole from values of rank
// 0, and of what it makes only values of rank 1 stay. Values of rank 2 that backward reads are made by inner segments,
// connected by values of rank 2 and repeated from lower ranks, the outer segments that they read from first. What stays
// lives until its last reader, other values until their last reader in the segment.
//
// A kept value is as it is while the forward has it, and stored from `stored_at` on; one of rank 1 or 2 is so while its
// segment is repeated, and stored after its last reader there. Where it is read, it is restored.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "solvers/checkpoint_step.h"

namespace actcore {

class Simulator {
 public:
  // `facts`: of the step; it must outlive this.
  explicit Simulator(const StepFacts& facts);

  // Of each value, its rank (where there is no choice, the entry does not count), and its form, or -1 for as it is. No
  // forms at all: all are as they are.
  Usage run(const std::vector<uint8_t>& ranks, const std::vector<int8_t>& forms = {});

  // Of the last run.
  uint8_t rank(size_t value) const { return ranks_[value]; }
  bool keeps(size_t value) const { return ranks_[value] == 0; }
  // The form in which it does wait: -1 as well where it does not wait, or in one that cannot serve those that read it.
  int8_t form(size_t value) const { return forms_[value]; }
  const std::vector<int64_t>& bytes() const { return bytes_; }  // the most during each event
  // Of operators: the first of the outer segment that repeats it, or -1.
  const std::vector<int32_t>& outer() const { return levels_[0].segments; }
  const std::vector<int32_t>& inner() const { return levels_[1].segments; }
  // Of a segment's first operator: the event at which it is repeated.
  const std::vector<int32_t>& outer_events() const { return levels_[0].events; }
  const std::vector<int32_t>& inner_events() const { return levels_[1].events; }
  // Of values: whether an inner segment reads it.
  bool read_inside(size_t value) const { return read_inside_[value]; }
  // Of values that are kept: the last event of life.
  const std::vector<int32_t>& ends() const { return ends_; }

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
    std::vector<double> noise;        // of values that the segment makes, before they are stored
  };
  struct Replay {
    Level* level;
    int32_t first;
  };

  // Levels that anything is repeated in.
  size_t depth() const { return nested_ ? 2 : 1; }
  void find_repeated();
  void find_segments(Level& level);
  void find_events();
  void find_readers();
  void add_lives();
  void add_replays(int32_t event);
  void add_fresh(Level& level, int32_t first, int32_t event);
  int64_t replay(const Level& level, int32_t first, int64_t& left_over);
  bool stays(const Level& level, int32_t value) const;
  void live(int32_t begin, int32_t last, int64_t size);
  static int32_t segment_of(Level& level, int32_t op);

  // What concerns forms alone (checkpoint_forms.cpp).
  const Form& form_of(int32_t value) const;
  int64_t held(int32_t value) const;
  bool waits_in_form(int32_t value) const;
  void choose_forms(const std::vector<int8_t>& forms);
  void add_stored();
  void restore_for_backward();
  double noise_read(const Level& level, int32_t value) const;
  double variance();

  const StepFacts& facts_;
  const TrainingStep& step_;
  bool has_aside_ = false;
  bool has_formed_ = false;
  std::array<Level, 2> levels_;
  std::vector<uint8_t> ranks_, read_inside_;
  std::vector<int32_t> ends_;
  std::vector<Replay> fresh_;
  std::vector<int64_t> bytes_;
  bool nested_ = false;

  std::vector<int8_t> forms_;
  std::vector<int32_t> formed_;         // values that wait in a form
  std::vector<int32_t> first_readers_;  // of waiting values: the first operator that reads them when repeated, or -1
  std::vector<int64_t> restored_, fresh_restored_;  // of events: for backward; of these, of what was repeated then
  double seconds_ = 0;
};

}  // namespace actcore
