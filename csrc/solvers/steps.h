// Step functions and codebooks with the least error: a row of cells is cut into contiguous pieces, each piece has a cost,
// and the costs add up to least. Bellman's dynamic program ("On the approximation of curves by line segments using
// dynamic programming", CACM 4, 1961), exact for every number of pieces at once.
#pragma once

#include <cstdint>
#include <vector>

namespace actcore {

// Cells [0, cuts[0]), [cuts[0], cuts[1]), ..., up to the last cell: no piece is empty.
struct Pieces {
  std::vector<int32_t> cuts;
  double cost;
};

struct StepFit {
  std::vector<int32_t> cuts;
  std::vector<double> levels;  // one for each piece: the mean of its values
  double error;                // sum of weight * (value - level)^2
};

struct LevelFit {
  std::vector<int32_t> chosen;  // candidates, the first and the last among them
  double error;                 // sum of weight * (level above - value) * (value - level below)
};

// Each value and its weight make a cell. For each entry of `pieces`, which are at least 1, the best cut into so many pieces,
// or into as many as there are cells. Weights are finite and not negative; a piece without weight has the plain mean of
// its values for a level. Takes time with the square of the cells and memory with cells * pieces.
std::vector<StepFit> fit_steps(const std::vector<double>& values, const std::vector<double>& weights,
                               const std::vector<int32_t>& pieces);

// For each entry of `counts`, which are at least 2, so many of the ascending candidates, or all where they are fewer. Values
// ascend too, and lie between the first candidate and the last.
std::vector<LevelFit> fit_levels(const std::vector<double>& values, const std::vector<double>& weights,
                                 const std::vector<double>& candidates, const std::vector<int32_t>& counts);

}  // namespace actcore
