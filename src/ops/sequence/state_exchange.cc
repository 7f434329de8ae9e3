#include "ops/sequence/state_exchange.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <functional>
#include <limits>

#include "core/error.h"
#include "ops/sequence/exchange_cost.h"
#include "ops/torch/tensor_views.h"

namespace halflife::ops {
namespace {

using Direction = SegmentGroup::Direction;

// Returns A before + own, for a dense A [..., K, K] and states [..., K, V] or [..., K].
at::Tensor FoldDense(const at::Tensor& matrix, const at::Tensor& before, const at::Tensor& own) {
  const bool is_vector = own.dim() < matrix.dim();
  const at::Tensor x = is_vector ? before.unsqueeze(-1) : before;
  at::Tensor y = at::matmul(matrix, x);
  if (is_vector) y = y.squeeze(-1);
  // Selects rather than multiplies by 0, which would pass a NaN on.
  const at::Tensor is_cut = (matrix == 0).flatten(-2).all(-1);
  return at::where(UnsqueezeLike(is_cut, own), own, y + own);
}

// Returns A before + own. Where A is 0, the result is `own`, even if `before` is not finite.
at::Tensor Fold(const Transition& transition, const at::Tensor& before, const at::Tensor& own) {
  if (transition.is_dense) return FoldDense(transition.factor, before, own);
  const at::Tensor f = UnsqueezeLike(transition.factor, own);
  return at::where(f == 0, own, f * before + own);
}

Transition Transposed(const Transition& transition) {
  if (!transition.is_dense) return transition;
  return {.factor = transition.factor.transpose(-2, -1).contiguous(), .is_dense = true};
}

// Returns a summary from its state and SegmentSummary::transition.
SegmentSummary MakeSummary(SegmentState own, const at::Tensor& transition, bool is_dense) {
  if (is_dense) return {.own = std::move(own), .transition_matrix = transition};
  return {.own = std::move(own), .log_transition = transition};
}

Passed PassUnscaled(const SegmentSummary& segment, const SegmentState& before) {
  Passed passed;
  if (segment.is_dense()) {
    passed.transition = {.factor = segment.transition_matrix, .is_dense = true};
  } else {
    passed.transition.factor = segment.log_transition.exp();
  }
  for (size_t i = 0; i < segment.own.values.size(); ++i)
    passed.after.values.push_back(Fold(passed.transition, before.values[i], segment.own.values[i]));
  return passed;
}

// Returns the state after a segment at a common scale. Its log scale is the larger of the two that
// are added. Factors are then at most 1, except for channels that grow faster than their head's
// largest transition.
Passed PassScaled(const SegmentSummary& segment, const SegmentState& before) {
  const at::Tensor& own = segment.own.log_scale;  // [N, C]
  const at::Tensor transition = segment.log_transition.to(own.scalar_type());
  at::Tensor largest = transition;
  while (largest.dim() > 2) largest = largest.amax(-1);
  const at::Tensor log_scale = at::maximum(own, before.log_scale + largest);
  const at::Tensor nothing = log_scale.isneginf();
  const auto relative = [&](const at::Tensor& x) {
    return (x - UnsqueezeLike(log_scale, x)).exp().masked_fill(UnsqueezeLike(nothing, x), 0);
  };
  const at::Tensor& value = segment.own.values[0];
  const at::Tensor factor =
      relative(transition + UnsqueezeLike(before.log_scale, transition)).to(value.scalar_type());
  const at::Tensor of_own = relative(own).to(value.scalar_type());
  Passed passed = {.after = {.values = {}, .log_scale = log_scale},
                   .transition = {.factor = factor}};
  for (size_t i = 0; i < segment.own.values.size(); ++i) {
    const at::Tensor& x = segment.own.values[i];
    const at::Tensor scaled =
        at::where(UnsqueezeLike(of_own == 0, x), 0, UnsqueezeLike(of_own, x) * x);
    passed.after.values.push_back(Fold(passed.transition, before.values[i], scaled));
  }
  return passed;
}

// Packs tensors of the shapes and dtypes of `like` into one byte tensor, and unpacks them.
class Message {
 public:
  explicit Message(Tensors like) : like_(std::move(like)) {}

  at::Tensor Pack(const Tensors& tensors) const {
    Tensors bytes;
    for (const at::Tensor& x : tensors) bytes.push_back(BytesOf(x.contiguous()));
    return at::cat(bytes);
  }
  Tensors Unpack(const at::Tensor& bytes) const {
    Tensors tensors;
    int64_t first = 0;
    for (const at::Tensor& x : like_) {
      const auto count = static_cast<int64_t>(x.nbytes());
      // The copy is aligned for any dtype; a view into the message may not be.
      tensors.push_back(
          bytes.narrow(0, first, count).clone().view(x.scalar_type()).view(x.sizes()));
      first += count;
    }
    return tensors;
  }
  at::Tensor Empty() const {
    int64_t count = 0;
    for (const at::Tensor& x : like_) count += static_cast<int64_t>(x.nbytes());
    return at::empty({count}, like_[0].options().dtype(at::kByte));
  }

 private:
  Tensors like_;
};

// Converts a state to a list of tensors (its values, then its log scale if it has one), and back.
Tensors ToTensors(const SegmentState& state) {
  Tensors tensors = state.values;
  if (state.log_scale.defined()) tensors.push_back(state.log_scale);
  return tensors;
}
SegmentState ToState(Tensors tensors, bool log_scaled) {
  SegmentState state;
  if (log_scaled) {
    state.log_scale = tensors.back();
    tensors.pop_back();
  }
  state.values = std::move(tensors);
  return state;
}

// Returns piece number `piece` of every tensor [N C, ...], cut along N C.
Tensors Piece(const Tensors& tensors, int64_t piece, int64_t num_pieces) {
  Tensors pieces;
  for (const at::Tensor& x : tensors) {
    const int64_t first = x.size(0) * piece / num_pieces,
                  end = x.size(0) * (piece + 1) / num_pieces;
    pieces.push_back(x.narrow(0, first, end - first));
  }
  return pieces;
}

Tensors Flat(const Tensors& tensors) {  // [N, C, ...] -> [N C, ...]
  Tensors flat;
  for (const at::Tensor& x : tensors) flat.push_back(x.flatten(0, 1));
  return flat;
}

// A fold that is passed from rank to rank. Messages are tensors [N C, ...] of the shapes of `own`.
struct Relay {
  Direction direction;
  const char* what;
  bool starts, ends;  // whether this rank is the first or the last one of the fold
  int place;          // index of this rank in the order of the fold
  Tensors own;        // the first rank sends it unchanged
  // Given what was received, returns what is sent on.
  std::function<Tensors(const Tensors& before, int64_t piece)> after;
};

// Returns what this rank received, [N C, ...] with the pieces concatenated; empty on the fold's
// first rank. Rank `place` receives piece p in shift p + place - 1 and sends it in shift p + place.
Tensors RunRelay(const Relay& relay, int64_t num_pieces, const RowSegment& row) {
  const int64_t num_shifts = num_pieces + row.size() - 2;
  std::vector<Tensors> received(num_pieces);
  const auto in_range = [&](int64_t piece) { return piece >= 0 && piece < num_pieces; };
  for (int64_t shift = 0; shift < num_shifts; ++shift) {
    const int64_t to_send = shift - relay.place, to_receive = to_send + 1;
    at::Tensor send, receive;
    if (!relay.ends && in_range(to_send)) {
      const Tensors own = Piece(relay.own, to_send, num_pieces);
      const Tensors message = relay.starts ? own : relay.after(received[to_send], to_send);
      send = Message(own).Pack(message);
    }
    const bool receives = !relay.starts && in_range(to_receive);
    const Message form(receives ? Piece(relay.own, to_receive, num_pieces) : Tensors{});
    if (receives) receive = form.Empty();
    const auto transfer = row.group->Shift(send, receive, relay.direction, relay.what);
    if (!receives) continue;
    transfer->Wait();
    received[to_receive] = form.Unpack(receive);
  }
  if (relay.starts) return {};
  Tensors whole;
  for (size_t i = 0; i < relay.own.size(); ++i) {
    Tensors pieces;
    for (const Tensors& piece : received) pieces.push_back(piece[i]);
    whole.push_back(at::cat(pieces));
  }
  return whole;
}

// Chooses the strategy. All ranks choose the same one, because their states and transitions have
// the same shapes.
StateStrategy StrategyFor(const Tensors& state, const at::Tensor& transition,
                          const RowSegment& row) {
  if (row.strategy != StateStrategy::kCheapest) return row.strategy;
  ExchangeBytes bytes = {.transition = static_cast<int64_t>(transition.nbytes())};
  for (const at::Tensor& x : state) bytes.state += static_cast<int64_t>(x.nbytes());
  return row.cost->Cheapest(row.size(), bytes);
}

int64_t NumPieces(StateStrategy strategy, const at::Tensor& value) {
  if (strategy != StateStrategy::kScan) return 1;
  return std::clamp<int64_t>(value.size(0) * value.size(1), 1, kScanPieces);
}

// Returns tensors [N C, ...] in the shapes of `like`, [N, C, ...].
Tensors Unflat(const Tensors& flat, const Tensors& like) {
  Tensors tensors;
  for (size_t i = 0; i < flat.size(); ++i) tensors.push_back(flat[i].view(like[i].sizes()));
  return tensors;
}

SegmentState BeforeByGather(const SegmentSummary& own, const RowSegment& row) {
  const bool scaled = own.own.log_scale.defined();
  Tensors mine = ToTensors(own.own);
  mine.push_back(own.transition());
  const Message message(mine);
  const at::Tensor all = row.group->AllGather(message.Pack(mine), "state");
  SegmentState before;
  for (int r = 0; r < row.rank(); ++r) {
    Tensors of_rank = message.Unpack(all.select(0, r));
    const at::Tensor transition = of_rank.back();
    of_rank.pop_back();
    const SegmentSummary segment =
        MakeSummary(ToState(std::move(of_rank), scaled), transition, own.is_dense());
    before = r == 0 ? segment.own : PassThrough(segment, before).after;
  }
  return before;
}

SegmentState BeforeByRelay(const SegmentSummary& own, StateStrategy strategy,
                           const RowSegment& row) {
  const bool scaled = own.own.log_scale.defined();
  const Tensors mine = ToTensors(own.own);
  const int64_t num_pieces = NumPieces(strategy, mine[0]);
  // [N C, ...] -> [N C, 1, ...], which has the dimensions of a state.
  const auto as_states = [](const Tensors& pieces) {
    Tensors states;
    for (const at::Tensor& x : pieces) states.push_back(x.unsqueeze(1));
    return states;
  };
  const Tensors flat = Flat(mine), transition = Flat({own.transition()});
  const auto after = [&](const Tensors& before, int64_t piece) -> Tensors {
    const SegmentSummary segment =
        MakeSummary(ToState(as_states(Piece(flat, piece, num_pieces)), scaled),
                    as_states(Piece(transition, piece, num_pieces))[0], own.is_dense());
    Tensors out;
    for (const at::Tensor& x :
         ToTensors(PassThrough(segment, ToState(as_states(before), scaled)).after))
      out.push_back(x.squeeze(1));
    return out;
  };
  const Tensors before = RunRelay({.direction = Direction::kToNext,
                                   .what = "state",
                                   .starts = row.is_first(),
                                   .ends = row.is_last(),
                                   .place = row.rank(),
                                   .own = flat,
                                   .after = after},
                                  num_pieces, row);
  return row.is_first() ? SegmentState() : ToState(Unflat(before, mine), scaled);
}

Tensors AfterByGather(const Tensors& local, const Transition& transition, const RowSegment& row) {
  Tensors mine = local;
  mine.push_back(transition.factor);
  const Message message(mine);
  const at::Tensor all = row.group->AllGather(message.Pack(mine), "state gradient");
  Tensors after;
  for (int r = row.size() - 1; r > row.rank(); --r) {
    const Tensors of_rank = message.Unpack(all.select(0, r));
    const Transition back = Transposed({.factor = of_rank.back(), .is_dense = transition.is_dense});
    for (size_t i = 0; i < local.size(); ++i) {
      if (r == row.size() - 1) {
        after.push_back(of_rank[i]);
      } else {
        after[i] = Fold(back, after[i], of_rank[i]);
      }
    }
  }
  return after;
}

Tensors AfterByRelay(const Tensors& local, const Transition& transition, StateStrategy strategy,
                     const RowSegment& row) {
  const int64_t num_pieces = NumPieces(strategy, local[0]);
  const Tensors flat = Flat(local), factors = Flat({Transposed(transition).factor});
  const auto before = [&](const Tensors& after, int64_t piece) {
    const Tensors own = Piece(flat, piece, num_pieces);
    const Transition back = {.factor = Piece(factors, piece, num_pieces)[0],
                             .is_dense = transition.is_dense};
    Tensors out;
    for (size_t i = 0; i < own.size(); ++i) out.push_back(Fold(back, after[i], own[i]));
    return out;
  };
  const Tensors after = RunRelay({.direction = Direction::kToPrevious,
                                  .what = "state gradient",
                                  .starts = row.is_last(),
                                  .ends = row.is_first(),
                                  .place = row.size() - 1 - row.rank(),
                                  .own = flat,
                                  .after = before},
                                 num_pieces, row);
  return row.is_last() ? Tensors{} : Unflat(after, local);
}

}  // namespace

at::Tensor ScaleOrZero(const at::Tensor& log_scale) {
  return log_scale.masked_fill(log_scale.isneginf(), 0);
}
at::Tensor ScaleOfSeen(const at::Tensor& log_scale, const at::Tensor& nothing) {
  return log_scale.masked_fill(nothing, -std::numeric_limits<double>::infinity());
}

at::Tensor UnsqueezeLike(const at::Tensor& x, const at::Tensor& like) {
  at::Tensor view = x;
  while (view.dim() < like.dim()) view = view.unsqueeze(-1);
  return view;
}

Passed PassThrough(const SegmentSummary& segment, const SegmentState& before) {
  HL_CHECK(before.values.size() == segment.own.values.size() &&
               before.log_scale.defined() == segment.own.log_scale.defined(),
           "a state of ", before.values.size(), " tensors before a segment of ",
           segment.own.values.size());
  HL_CHECK(!segment.is_dense() || !before.log_scale.defined(),
           "a state with a log scale and a dense transition. Use log_transition, or values without "
           "a log scale.");
  return before.log_scale.defined() ? PassScaled(segment, before) : PassUnscaled(segment, before);
}

SegmentState StateBefore(const SegmentSummary& own, const RowSegment& row) {
  const StateStrategy strategy = StrategyFor(ToTensors(own.own), own.transition(), row);
  return strategy == StateStrategy::kGather ? BeforeByGather(own, row)
                                            : BeforeByRelay(own, strategy, row);
}

Tensors GradientAfter(const Tensors& local, const Transition& transition, const RowSegment& row) {
  const StateStrategy strategy = StrategyFor(local, transition.factor, row);
  return strategy == StateStrategy::kGather ? AfterByGather(local, transition, row)
                                            : AfterByRelay(local, transition, strategy, row);
}

}  // namespace halflife::ops
