// The dynamic program that cuts a row of cells into contiguous pieces.
#pragma once

#include <functional>

#include "solvers/steps.h"

namespace actcore {

// Writes the cost of the piece [begin, end) to costs[begin] for every begin < end. Costs are not negative, and a longer
// piece costs no less, in what is computed, too.
using PieceCosts = std::function<void(int32_t end, double* costs)>;

// The best cut of `cells` cells, at least 1, into 1, 2, ... `most` pieces, or as many as there are cells, in this order.
std::vector<Pieces> cut_into_pieces(int32_t cells, int32_t most, const PieceCosts& piece_costs);

}  // namespace actcore
