#include "solvers/checkpoint_groups.h"

#include <algorithm>
#include <limits>

#include "solvers/index.h"

namespace actcore {

namespace {

constexpr size_t kMostPlaces = 160;

}  // namespace

GroupCuts::GroupCuts(PlanPool& pool, const Assignment& plan) : pool_(pool), plan_(plan) {
  pool.measure(plan);
  find_choices();
  find_places();
  find_costs();
}

// With operators for places.
void GroupCuts::find_choices() {
  std::vector<int32_t> index(pool_.step.values(), -1);
  for (const int32_t value : pool_.choices) {
    const size_t producer = at(pool_.facts.producers()[at(value)]);
    index[at(value)] = static_cast<int32_t>(choices_.size());
    choices_.push_back({value, producer, producer, plan_.ranks[at(value)] == 0});
    if (plan_.ranks[at(value)] == 0) kept_bytes_ += pool_.step.nbytes[at(value)];
  }
  for (size_t op = 0; op < pool_.step.ops(); ++op) {
    const auto& makes = pool_.step.makes[op];
    if (std::none_of(makes.begin(), makes.end(), [&](int32_t value) { return pool_.useful[at(value)] != 0; })) continue;
    for (const int32_t value : pool_.step.reads[op]) {
      if (index[at(value)] >= 0) choices_[at(index[at(value)])].needed = op;
    }
  }
}

// Behind each operator that makes something that is kept; of many, those that the fewest bytes cross.
void GroupCuts::find_places() {
  const size_t ops = pool_.step.ops();
  std::vector<int64_t> crossing(ops + 1, 0);
  std::vector<uint8_t> makes(ops, 0);
  for (const Choice& choice : choices_) {
    crossing[choice.made] += pool_.step.nbytes[at(choice.value)];
    crossing[choice.needed] -= pool_.step.nbytes[at(choice.value)];
    if (choice.kept) makes[choice.made] = 1;
  }
  std::vector<size_t> ends;
  for (size_t op = 0; op < ops; ++op) {
    if (op > 0) crossing[op] += crossing[op - 1];
    if (makes[op] && op + 1 < ops) ends.push_back(op);
  }
  if (ends.size() > kMostPlaces) {
    std::vector<size_t> best;
    for (size_t i = 0; i < kMostPlaces; ++i) {
      const auto begin = ends.begin() + static_cast<int64_t>(i * ends.size() / kMostPlaces);
      const auto end = ends.begin() + static_cast<int64_t>((i + 1) * ends.size() / kMostPlaces);
      best.push_back(*std::min_element(begin, end, [&](size_t a, size_t b) { return crossing[a] < crossing[b]; }));
    }
    ends.swap(best);
  }
  ends.push_back(ops - 1);
  places_.resize(ops);
  for (size_t op = 0, place = 0; op < ops; ++op) {
    places_[op] = place;
    if (op == ends[place]) ++place;
  }
  for (Choice& choice : choices_) {
    choice.made = places_[choice.made];
    choice.needed = places_[choice.needed];
  }
  beside_.assign(ends.size(), 0);
  seconds_.assign(ends.size(), 0.0);
}

void GroupCuts::find_costs() {
  const TrainingStep& step = pool_.step;
  const Simulator& simulator = pool_.simulator;
  const StepFacts& facts = pool_.facts;
  std::vector<int64_t> alive(step.events() + 1, 0);
  for (const int32_t value : pool_.choices) {
    if (!simulator.keeps(at(value)) || simulator.ends()[at(value)] <= facts.forward_ends()[at(value)]) continue;
    alive[at(facts.producers()[at(value)])] += step.nbytes[at(value)];
    alive[at(simulator.ends()[at(value)]) + 1] -= step.nbytes[at(value)];
  }
  for (size_t event = 1; event < step.events(); ++event) alive[event] += alive[event - 1];
  // Backward goes through the row from its end.
  size_t place = beside_.size() - 1;
  for (size_t i = 0; i < step.backward.size(); ++i) {
    if (!step.backward[i].empty()) {
      size_t latest = 0;
      for (const int32_t value : step.backward[i]) latest = std::max(latest, places_[at(facts.producers()[at(value)])]);
      place = std::min(place, latest);
    }
    const size_t event = step.ops() + i;
    beside_[place] = std::max(beside_[place], simulator.bytes()[event] - alive[event]);
  }
  for (size_t op = 0; op < step.ops(); ++op) {
    // Shares, so that nothing overflows whatever the unit of seconds is.
    if (simulator.outer()[op] >= 0 && pool_.total_seconds > 0) {
      seconds_[places_[op]] += step.seconds[op] / pool_.total_seconds;
    }
  }
  const size_t places = beside_.size();
  crosses_.assign(places, std::vector<int64_t>(places, 0));
  inside_ = crosses_;
  for (const Choice& choice : choices_) {
    const int64_t size = step.nbytes[at(choice.value)];
    for (size_t last = choice.made; last < choice.needed; ++last) crosses_[choice.made][last] += size;
    for (size_t last = choice.needed; choice.kept && last < places; ++last) inside_[choice.made][last] += size;
  }
  for (size_t first = places - 1; first-- > 0;) {
    for (size_t last = first + 1; last < places; ++last) {
      crosses_[first][last] += crosses_[first + 1][last];
      inside_[first][last] += inside_[first + 1][last];
    }
  }
}

std::vector<size_t> GroupCuts::solve(int64_t peak, double price) const {
  constexpr double kNone = std::numeric_limits<double>::infinity();
  const size_t places = beside_.size();
  struct State {
    double cost = kNone;
    int64_t bytes = 0;  // that later groups need
    size_t from = 0;
  };
  std::vector<State> states(places + 1);
  states[0].cost = 0;
  for (size_t last = 0; last < places; ++last) {
    int64_t beside = 0;
    double seconds = 0;
    State& state = states[last + 1];
    for (size_t first = last + 1; first-- > 0;) {
      beside = std::max(beside, beside_[first]);
      // Its last segment need not be repeated by itself: backward comes to it as the group is repeated.
      if (first < last) seconds += seconds_[first];
      const State& before = states[first];
      const int64_t bytes = before.bytes + crosses_[first][last];
      if (before.cost == kNone || bytes + inside_[first][last] + beside > peak) continue;
      const double cost =
          before.cost + static_cast<double>(crosses_[first][last]) + (inside_[first][last] > 0 ? price * seconds : 0.0);
      if (cost < state.cost) state = {cost, bytes, first};
    }
  }
  std::vector<size_t> groups;
  if (states[places].cost == kNone) return groups;
  for (size_t end = places; end > 0; end = states[end].from) groups.push_back(end - 1);
  std::reverse(groups.begin(), groups.end());
  return groups;
}

int64_t GroupCuts::least_peak() const {
  int64_t low = 0;
  int64_t high = kept_bytes_ + *std::max_element(beside_.begin(), beside_.end());
  while (high - low > std::max<int64_t>(1, high / 128)) {
    const int64_t middle = low + (high - low) / 2;
    (solve(middle, 0.0).empty() ? low : high) = middle;
  }
  return high;
}

std::vector<uint8_t> GroupCuts::ranks(const std::vector<size_t>& groups) const {
  std::vector<size_t> group_of(beside_.size());
  for (size_t place = 0, group = 0; place < beside_.size(); ++place) {
    group_of[place] = group;
    if (place == groups[group]) ++group;
  }
  std::vector<uint8_t> ranks(pool_.step.values(), 0);
  for (const int32_t value : pool_.choices) ranks[at(value)] = plan_.ranks[at(value)] == 0 ? 1 : 2;
  std::vector<uint8_t> nested(groups.size(), 0);
  for (const Choice& choice : choices_) {
    const size_t group = group_of[choice.made];
    if (group != group_of[choice.needed]) {
      ranks[at(choice.value)] = 0;
    } else if (choice.kept) {
      nested[group] = 1;
    }
  }
  for (const int32_t value : pool_.choices) {
    const size_t group = group_of[places_[at(pool_.facts.producers()[at(value)])]];
    if (!nested[group]) ranks[at(value)] = std::min<uint8_t>(ranks[at(value)], 1);
  }
  return ranks;
}

}  // namespace actcore
