// The forms in which what a plan leaves waiting does so at the least cost, for a price of a second and the variance that
// is allowed: values are independent of each other once the price of a unit of variance is known, which is found by
// bisection.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "solvers/checkpoint_pool.h"

namespace actcore {

// A way for a value to wait.
struct FitOption {
  int8_t form;
  double bytes;
  double seconds;
  double variance;  // what its noise adds to the plan's, here and in all that is made of it
};

struct FitItem {
  int32_t value;
  std::vector<FitOption> options;  // the first: as it is
};

class FormFit {
 public:
  explicit FormFit(PlanPool& pool);

  // For a plan with these ranks, which is simulated. `remade`: what is recomputed may wait in a form, too.
  void prepare(const std::vector<uint8_t>& ranks, bool remade = false);
  const std::vector<FitItem>& items() const { return items_; }
  // For the ranks last prepared; `price` in bytes a second.
  Assignment fit(double price);
  // What each value cost in the last one, in bytes.
  std::vector<double> costs(double price) const;
  // All bytes by all seconds that these values take at most.
  double usual_price() const { return usual_price_; }

 private:
  void find_influences(const std::vector<uint8_t>& ranks);
  double choose(double price, double of_variance, std::vector<uint8_t>& chosen) const;
  void use_what_is_left(double price, const std::vector<uint8_t>& better, double left, std::vector<uint8_t>& chosen);

  PlanPool& pool_;
  std::vector<int32_t> reads_;  // of values: restorations for backward
  double usual_price_ = 1;
  std::vector<uint8_t> ranks_;
  std::vector<double> influence_, made_, made_inside_;
  std::vector<int32_t> again_;  // of values: operators that read them when repeated
  std::vector<FitItem> items_;
  std::vector<uint8_t> chosen_;
  double of_variance_ = 0;  // bytes a unit of variance
  double known_ = 0;        // a price that was found before
  int64_t size_ = 0;
};

}  // namespace actcore
