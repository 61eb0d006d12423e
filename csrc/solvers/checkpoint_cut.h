// The cheapest set of vertices to keep, so that what is left falls apart into connected pieces of bounded weight. Both
// objectives of checkpointing are made of it: the vertices are tensors (or operators), the pieces are the segments that
// backward recomputes, their weight the bytes that this makes at once.
//
// Dynamic programming over a row of vertices, after the cuts of Kusumoto et al. ("A graph theoretic framework of
// recomputation algorithms for memory-efficient backpropagation", NeurIPS 2019), with the pieces that are still open in
// the state: a state says for each vertex with neighbours to come whether it is kept, or else which piece it is in, and
// what each such piece weighs. Of states that agree in the former, those that cost no less and weigh no less are left
// out. The number of states is bounded; where it forgets some, the bound says so. On chains, and on the narrow graphs
// that networks are, it forgets none at a few hundred states.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace actcore {

constexpr int64_t kNoBound = std::numeric_limits<int64_t>::max() / 4;

struct CutVertex {
  int64_t keep;    // cost of keeping it, not negative
  int64_t drop;    // cost of not keeping it, not negative
  int64_t weight;  // what it adds to its piece, not negative
  bool may_keep;
  bool may_drop;
};

struct CutGraph {
  std::vector<CutVertex> vertices;
  std::vector<std::vector<int32_t>> before;  // for each vertex its neighbours among the ones before it, each once
};

struct Cut {
  bool found = false;         // within the bounds, for less than the limit
  std::vector<uint8_t> kept;  // for each vertex, if found
  int64_t cost = 0;
  int64_t lower_bound = 0;  // no cut costs less than this, or all cost the limit or more
  int64_t steps = 0;        // states that were looked at
};

class CutSolver {
 public:
  explicit CutSolver(const CutGraph& graph);

  // The most vertices that wait for a neighbour at once.
  size_t width() const;

  // `bounds[v]`: what the piece of v may weigh once v is in it; they do not rise along the row where a piece shall keep
  // all of its vertices' bounds. Looks for costs below `limit`, with at most `states` states after each vertex.
  // `price`: what a unit of weight in an open piece is taken to cost when states must be forgotten.
  Cut solve(const std::vector<int64_t>& bounds, int64_t limit, size_t states, double price) const;

 private:
  struct Place {
    int32_t slot = -1;  // of the vertex itself; none where it is always kept or the last of its neighbours
    std::vector<int32_t> neighbours;  // slots of the ones before it
    std::vector<int32_t> active;      // slots in use afterwards
    bool may_drop = true;
  };

  std::vector<int64_t> least_to_come(const std::vector<int64_t>& bounds) const;

  const CutGraph& graph_;
  std::vector<Place> places_;
  bool restricted_ = false;  // vertices are kept that need not be, because the row is too wide
};

}  // namespace actcore
