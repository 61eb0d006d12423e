#include "solvers/pieces.h"

#include <algorithm>
#include <limits>

namespace actcore {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Starts that are looked at together, or skipped together.
constexpr int32_t kBlock = 32;
constexpr int32_t kLanes = 8;

struct Last {
  double cost;
  int32_t begin;  // of the last piece
};

// The least of before[begin] + costs[begin] over a block, if it is less than best's. The lanes let the compiler use vectors,
// which it must not where one minimum follows the other.
void look_at(const double* before, const double* costs, int32_t begin, int32_t end, Last& best) {
  double least = kInfinity;
  if (end - begin == kBlock) {
    double lanes[kLanes];
    for (int32_t lane = 0; lane < kLanes; ++lane) lanes[lane] = before[begin + lane] + costs[begin + lane];
    for (int32_t i = begin + kLanes; i < end; i += kLanes) {
      for (int32_t lane = 0; lane < kLanes; ++lane) {
        const double sum = before[i + lane] + costs[i + lane];
        lanes[lane] = sum < lanes[lane] ? sum : lanes[lane];
      }
    }
    least = *std::min_element(lanes, lanes + kLanes);
  } else {
    for (int32_t i = begin; i < end; ++i) least = std::min(least, before[i] + costs[i]);
  }
  if (least >= best.cost) return;
  for (int32_t i = begin; i < end; ++i) {
    if (before[i] + costs[i] == least) best = {least, i};
  }
}

// Both terms are monotone: with a later start the cells before cost more, and the last piece less. So one sum bounds a block
// from below, and another all blocks before it, and most of them need no look.
Last best_last_piece(const double* before, const double* costs, int32_t first, int32_t end, int32_t guess) {
  Last best{before[guess] + costs[guess], guess};
  for (int32_t block_end = end; block_end > first; block_end -= kBlock) {
    const int32_t begin = std::max(first, block_end - kBlock);
    const double least_piece = costs[block_end - 1];
    if (before[first] + least_piece >= best.cost) break;
    if (before[begin] + least_piece < best.cost) look_at(before, costs, begin, block_end, best);
  }
  return best;
}

}  // namespace

std::vector<Pieces> cut_into_pieces(int32_t cells, int32_t most, const PieceCosts& piece_costs) {
  most = std::min(most, cells);
  const size_t stride = static_cast<size_t>(cells) + 1;
  // least[k * stride + end]: of the cells before `end` in k + 1 pieces, with the start of the last one.
  std::vector<double> least(stride * static_cast<size_t>(most), kInfinity);
  std::vector<int32_t> start(least.size(), 0);
  std::vector<double> costs(stride);
  for (int32_t end = 1; end <= cells; ++end) {
    piece_costs(end, costs.data());
    least[static_cast<size_t>(end)] = costs[0];
    for (int32_t k = 1; k < std::min(most, end); ++k) {
      const size_t row = static_cast<size_t>(k) * stride;
      const int32_t guess = std::max(k, start[row + static_cast<size_t>(end) - 1]);
      const Last last = best_last_piece(&least[row - stride], costs.data(), k, end, guess);
      least[row + static_cast<size_t>(end)] = last.cost;
      start[row + static_cast<size_t>(end)] = last.begin;
    }
  }
  std::vector<Pieces> result;
  for (int32_t k = 0; k < most; ++k) {
    Pieces pieces{std::vector<int32_t>(static_cast<size_t>(k)), least[static_cast<size_t>(k) * stride + stride - 1]};
    int32_t end = cells;
    for (int32_t piece = k; piece > 0; --piece) {
      end = start[static_cast<size_t>(piece) * stride + static_cast<size_t>(end)];
      pieces.cuts[static_cast<size_t>(piece) - 1] = end;
    }
    result.push_back(std::move(pieces));
  }
  return result;
}

}  // namespace actcore
