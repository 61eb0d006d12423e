#include "solvers/checkpoint_fit.h"

#include <algorithm>
#include <cmath>

#include "solvers/index.h"

namespace actcore {

namespace {

constexpr int64_t kOptionsAStep = 4;  // take as long as one simulated event

double cost_of(const FitOption& option, double price, double of_variance) {
  return option.bytes + price * option.seconds + of_variance * option.variance;
}

}  // namespace

FormFit::FormFit(PlanPool& pool)
    : pool_(pool),
      reads_(pool.step.values(), 0),
      influence_(pool.step.values()),
      made_(pool.step.values()),
      made_inside_(pool.step.values()),
      again_(pool.step.values()) {
  int32_t lent = -1;
  for (const auto& row : pool.step.backward) {
    for (const int32_t value : row) {
      if (pool.forms[at(value)].empty()) continue;
      if (value != lent) ++reads_[at(value)];
      lent = value;
    }
  }
  double bytes = 1;
  double seconds = 0;
  for (const double of_op : pool.step.seconds) seconds += of_op;
  for (size_t value = 0; value < pool.step.values(); ++value) {
    bytes += static_cast<double>(pool.step.nbytes[value]);
    double most = 0;
    for (const int8_t form : pool.forms[value]) {
      const Form& numbers = pool.step.forms[value][static_cast<size_t>(form)];
      most = std::max(most, numbers.store_seconds + reads_[value] * numbers.restore_seconds);
    }
    seconds += most;
  }
  if (seconds > 0 && std::isfinite(bytes / seconds)) usual_price_ = bytes / seconds;
}

// What a unit of a waiting value's noise adds to the variance: its own weight and those of all that is made of it.
void FormFit::find_influences(const std::vector<uint8_t>& ranks) {
  const TrainingStep& step = pool_.step;
  const Simulator& simulator = pool_.simulator;
  std::fill(again_.begin(), again_.end(), 0);
  for (size_t value = 0; value < step.values(); ++value) {
    const double own = pool_.facts.wanted()[value] ? step.weights[value] : 0.0;
    const uint8_t rank = simulator.rank(value);
    influence_[value] = own;
    made_[value] = rank == 1 ? own : 0.0;
    made_inside_[value] = rank == 2 ? own : 0.0;
  }
  for (size_t op = step.ops(); op-- > 0;) {
    double outer = 0;
    double inner = 0;
    const bool outside = simulator.outer()[op] >= 0;
    const bool inside = simulator.inner()[op] >= 0;
    if (!outside && !inside) continue;
    for (const int32_t value : step.makes[op]) {
      if (simulator.rank(at(value)) >= 1) outer += made_[at(value)];
      if (simulator.rank(at(value)) == 2) inner += made_inside_[at(value)];
    }
    for (const int32_t value : step.reads[op]) {
      const uint8_t rank = simulator.rank(at(value));
      if (outside) {
        (rank == 0 ? influence_ : made_)[at(value)] += outer;
        again_[at(value)] += rank == 0;
      }
      if (inside) {
        (rank < 2 ? influence_ : made_inside_)[at(value)] += inner;
        if (rank == 1) made_[at(value)] += inner;
        again_[at(value)] += rank < 2;
      }
    }
  }
  ranks_ = ranks;
}

void FormFit::prepare(const std::vector<uint8_t>& ranks, bool remade) {
  pool_.measure({ranks, {}});
  find_influences(ranks);
  items_.clear();
  size_ = 0;
  for (size_t value = 0; value < pool_.step.values(); ++value) {
    if (pool_.forms[value].empty()) continue;
    const uint8_t rank = pool_.simulator.rank(value);
    if (rank > 0 && !remade) continue;
    if (!pool_.facts.wanted()[value] && (again_[value] == 0 || rank == 2)) continue;
    FitItem item{static_cast<int32_t>(value), {{-1, static_cast<double>(pool_.step.nbytes[value]), 0, 0}}};
    const double restored = reads_[value] + again_[value];
    for (const int8_t form : pool_.forms[value]) {
      const Form& numbers = pool_.step.forms[value][static_cast<size_t>(form)];
      if (again_[value] > 0 && !numbers.serves) continue;
      const FitOption option{form, static_cast<double>(numbers.held),
                             numbers.store_seconds + restored * numbers.restore_seconds,
                             influence_[value] * numbers.noise};
      if (form == 0 && pool_.step.formed[value]) {
        item.options[0] = option;
      } else {
        item.options.push_back(option);
      }
    }
    size_ += static_cast<int64_t>(item.options.size());
    items_.push_back(std::move(item));
  }
}

double FormFit::choose(double price, double of_variance, std::vector<uint8_t>& chosen) const {
  double variance = 0;
  pool_.left -= size_ / kOptionsAStep;
  pool_.steps += size_ / kOptionsAStep;
  chosen.resize(items_.size());
  for (size_t i = 0; i < items_.size(); ++i) {
    const auto& options = items_[i].options;
    size_t best = 0;
    double least = cost_of(options[0], price, of_variance);
    for (size_t j = 1; j < options.size(); ++j) {
      const double cost = cost_of(options[j], price, of_variance);
      if (cost >= least) continue;
      least = cost;
      best = j;
    }
    chosen[i] = static_cast<uint8_t>(best);
    variance += options[best].variance;
  }
  return variance;
}

// Takes over what the price that is too low would choose, where most is gained for the variance, as far as there is
// some left.
void FormFit::use_what_is_left(double price, const std::vector<uint8_t>& better, double left,
                               std::vector<uint8_t>& chosen) {
  struct Change {
    double worth;
    double variance;
    size_t item;
  };
  std::vector<Change> changes;
  for (size_t i = 0; i < items_.size(); ++i) {
    if (better[i] == chosen[i]) continue;
    const FitOption& now = items_[i].options[chosen[i]];
    const FitOption& next = items_[i].options[better[i]];
    const double gain = cost_of(now, price, 0) - cost_of(next, price, 0);
    const double variance = next.variance - now.variance;
    if (gain > 0) changes.push_back({variance > 0 ? gain / variance : gain * 1e300, variance, i});
  }
  std::stable_sort(changes.begin(), changes.end(), [](const Change& a, const Change& b) { return a.worth > b.worth; });
  for (const Change& change : changes) {
    if (change.variance > left) continue;
    left -= change.variance;
    chosen[change.item] = better[change.item];
  }
}

Assignment FormFit::fit(double price) {
  constexpr int32_t kHalvings = 8;
  of_variance_ = 0;
  double variance = choose(price, 0, chosen_);
  // What sums of rounded numbers may be off by.
  const double most = pool_.variance * (1 - 1e-9);
  if (variance > most) {
    double low = 0;
    double high = known_ > 0 ? known_ : usual_price_;
    std::vector<uint8_t> cheaper = chosen_;
    std::vector<uint8_t> other;
    while ((variance = choose(price, high, chosen_)) > most && high < 1e300) {
      low = high;
      cheaper = chosen_;
      high *= 16;
    }
    const auto try_price = [&](double middle) {
      const double found = choose(price, middle, other);
      if (found > most) {
        low = middle;
        cheaper = other;
      } else {
        high = middle;
        variance = found;
        chosen_ = other;
      }
    };
    for (int32_t i = 0; i < 60 && low == 0; ++i) try_price(high / 16);
    for (int32_t i = 0; i < kHalvings && high > low * 1.001; ++i) try_price(std::sqrt(low) * std::sqrt(high));
    known_ = of_variance_ = high;
    use_what_is_left(price, cheaper, most - variance, chosen_);
  }
  Assignment plan{ranks_, std::vector<int8_t>(pool_.step.values(), -1)};
  for (size_t i = 0; i < items_.size(); ++i) {
    plan.forms[at(items_[i].value)] = items_[i].options[chosen_[i]].form;
  }
  return plan;
}

std::vector<double> FormFit::costs(double price) const {
  std::vector<double> costs(pool_.step.nbytes.begin(), pool_.step.nbytes.end());
  for (size_t i = 0; i < items_.size(); ++i) {
    costs[at(items_[i].value)] = cost_of(items_[i].options[chosen_[i]], price, of_variance_);
  }
  return costs;
}

}  // namespace actcore
