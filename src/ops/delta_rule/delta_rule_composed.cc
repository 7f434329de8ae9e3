// The chunk form of the delta rule. With N chunks of C tokens, for one chunk and value head:
//
//   P_r  = exp(sum of log_decay over tokens 0 .. r)        decay of the incoming state
//   w_rs = exp(sum of log_decay over tokens s + 1 .. r)    decay from token s to token r
//   Q_s  = w_(C-1)s,  Gamma = P_(C-1)
//   L_rs = beta_r k_r (w_rs * k_s)  (s < r),   A_rs = q_r (w_rs * k_s)  (s <= r)
//   [U~ W~] = (I + L)^-1 beta [V  K * P]                   by forward substitution
//   U  = U~ - W~ S,   O = (Q * P) S + A U,   S' = Gamma * S + (K * Q)^T U
//
// (Yang et al., 2024, "Parallelizing Linear Transformers with the Delta Rule over Sequence Length",
// section 3; here with decays.) All but the recurrence of S is computed for all chunks at once.
// Every decay is the exponential of a sum over exactly its range: a difference of two running sums
// loses accuracy in fp32 and is NaN for log decays of -inf.
//
// With decays per channel, w takes T C K values per value head, and autograd keeps two tensors of
// this size for backward.
//
// Chunks are cut at multiples of C. Where documents start inside a chunk, the terms that would
// cross a start are replaced by zero.
#include "ops/delta_rule/delta_rule_internal.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/linalg_solve_triangular.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "ops/torch/dispatch.h"

namespace halflife::ops {
namespace {

// C with decays per head, and per channel: there w has K values for each pair of tokens.
constexpr int64_t kDeltaChunk = 64, kDeltaChannelChunk = 16;

// The documents of rows. Undefined: no document starts inside the rows.
struct RowDocuments {
  at::Tensor begin;    // [B, T] int64: index of the first token of the token's document
  at::Tensor started;  // [B, T] bool: a document has started at or before the token in the row
};

// Rows that are whole sequences.
struct DeltaRows {
  at::Tensor q, k, v, log_decay, beta;
  at::Tensor initial_state;  // [B, HV, K, V] in the compute type
  RowDocuments documents;
};

// The shape of a call in chunks. B rows of N chunks.
struct ChunkGrid {
  int64_t batch, seq_len, num_heads, size, count;

  explicit ChunkGrid(const DeltaRows& rows)
      : batch(rows.v.size(0)),
        seq_len(rows.v.size(1)),
        num_heads(rows.v.size(2)),
        size(rows.log_decay.defined() && rows.log_decay.dim() == 4 ? kDeltaChannelChunk
                                                                   : kDeltaChunk),
        count(std::max<int64_t>(1, (seq_len + size - 1) / size)) {}
  int64_t num_padded() const { return count * size - seq_len; }

  // Cuts x [B, T, H, W] to [B, HV, N, C, W] and pads it with zeros. A token of zeros leaves the
  // state as it is.
  at::Tensor Cut(const at::Tensor& x) const {
    const int64_t heads = x.size(2), width = x.size(3);
    const at::Tensor chunks = at::constant_pad_nd(x, {0, 0, 0, 0, 0, num_padded()})
                                  .view({batch, count, size, heads, width})
                                  .permute({0, 3, 1, 2, 4});
    if (heads == num_heads) return chunks.contiguous();
    return chunks.unsqueeze(2)
        .expand({batch, heads, num_heads / heads, count, size, width})
        .reshape({batch, num_heads, count, size, width});
  }
  // Returns the inverse of Cut for HV heads: [B, HV, N, C, W] -> [B, T, HV, W].
  at::Tensor Join(const at::Tensor& x) const {
    return x.permute({0, 2, 3, 1, 4})
        .reshape({batch, count * size, num_heads, x.size(4)})
        .narrow(1, 0, seq_len)
        .contiguous();
  }
  // Cuts x [B, T], one value per token, to [B, 1, N, C]. Padding repeats the last token.
  at::Tensor CutTokens(const at::Tensor& x) const {
    return at::cat({x, x.narrow(1, seq_len - 1, 1).expand({batch, num_padded()})}, 1)
        .view({batch, 1, count, size});
  }
};

// Which terms are zero because of the order of tokens, or because a document starts in between.
struct HiddenTerms {
  at::Tensor pairs;  // token s from token r: [C, C], or [B, 1, N, C, C] with documents
  at::Tensor state;  // the incoming state from token r: [B, 1, N, C, 1], or undefined: none
  at::Tensor end;    // the outgoing state from token s: the same shapes
};

HiddenTerms FindHiddenTerms(const RowDocuments& documents, const ChunkGrid& grid,
                            const at::Device& device) {
  const at::Tensor later =
      at::ones({grid.size, grid.size}, at::TensorOptions(device).dtype(at::kBool)).triu(1);
  if (!documents.begin.defined() || grid.seq_len == 0) return {.pairs = later};
  const at::Tensor begin = grid.CutTokens(documents.begin);
  const at::Tensor first = grid.size * at::arange(grid.count, begin.options()).view({1, 1, -1, 1});
  const at::Tensor last = begin.narrow(3, grid.size - 1, 1);
  const at::Tensor starts_here =
      grid.CutTokens(documents.started).logical_and(begin.greater_equal(first));
  return {.pairs = later.logical_or(begin.unsqueeze(4) != begin.unsqueeze(3)),
          .state = starts_here.unsqueeze(4),
          .end = (begin != last).unsqueeze(4)};
}

at::Tensor Hide(const at::Tensor& x, const at::Tensor& hidden) {
  return hidden.defined() ? x.masked_fill(hidden, 0) : x;
}

// The decays of a chunk. W is 1 for decays per head and K for decays per channel.
struct ChunkDecays {
  at::Tensor state;  // P [B, HV, N, C, W]
  at::Tensor pairs;  // w [B, HV, N, C, C, W]; 1 where s >= r
  at::Tensor end;    // Q [B, HV, N, C, W]
  at::Tensor whole;  // Gamma [B, HV, N, W, 1]
};

// `log_decay`: [B, HV, N, C, W].
ChunkDecays MakeDecays(const at::Tensor& log_decay, const HiddenTerms& hidden) {
  const int64_t size = log_decay.size(3);
  std::vector<int64_t> pairs = log_decay.sizes().vec();
  pairs.insert(pairs.begin() + 4, size);
  const at::Tensor not_before =
      at::ones({size, size}, log_decay.options().dtype(at::kBool)).triu().unsqueeze(2);
  // Row r holds the log decay of token r for all s < r, so that a running sum over rows gives the
  // sums over s + 1 .. r.
  const at::Tensor own = log_decay.unsqueeze(4).expand(pairs).masked_fill(not_before, 0);
  ChunkDecays decays;
  decays.pairs = own.cumsum(3).exp();
  decays.state = Hide(log_decay.cumsum(3).exp(), hidden.state);
  decays.end = Hide(decays.pairs.select(3, size - 1), hidden.end);
  decays.whole = decays.state.select(3, size - 1).unsqueeze(4);
  return decays;
}

// x_r (w_rs * k_s) for x = q and x = k, each [B, HV, N, C, C].
struct PairProducts {
  at::Tensor q, k;
};
PairProducts MakePairProducts(const at::Tensor& q, const at::Tensor& k, const at::Tensor& decays,
                              const HiddenTerms& hidden) {
  if (decays.size(5) == 1) {
    const at::Tensor keys = k.transpose(3, 4), w = decays.squeeze(5);
    return {.q = Hide(at::matmul(q, keys) * w, hidden.pairs),
            .k = Hide(at::matmul(k, keys) * w, hidden.pairs)};
  }
  // For each token r, one product of the decayed keys [C, K] with its query and its key [K, 2].
  const at::Tensor readers = at::stack({q, k}, 5);
  const at::Tensor products = at::matmul(decays * k.unsqueeze(3), readers);
  return {.q = Hide(products.select(5, 0), hidden.pairs),
          .k = Hide(products.select(5, 1), hidden.pairs)};
}

// The operands of the recurrence of S, and of the outputs.
struct ChunkForm {
  at::Tensor new_values;  // U~ [B, HV, N, C, V]
  at::Tensor removals;    // W~ [B, HV, N, C, K]
  at::Tensor writers;     // (K * Q)^T [B, HV, N, K, C]
  at::Tensor whole;       // Gamma [B, HV, N, W, 1]
  at::Tensor readers;     // Q * P [B, HV, N, C, K], with the scale
  at::Tensor weights;     // A [B, HV, N, C, C]
};

ChunkForm MakeChunkForm(const DeltaRows& rows, double scale, const ChunkGrid& grid) {
  const at::ScalarType compute = ComputeType(rows.q);
  const at::Tensor q = grid.Cut(rows.q.to(compute)) * scale, k = grid.Cut(rows.k.to(compute)),
                   v = grid.Cut(rows.v.to(compute)), beta = grid.Cut(rows.beta.unsqueeze(3));
  const HiddenTerms hidden = FindHiddenTerms(rows.documents, grid, rows.q.device());
  const bool per_head = rows.log_decay.defined() && rows.log_decay.dim() == 3;
  const at::Tensor log_decay =
      !rows.log_decay.defined() ? at::zeros_like(beta)
                                : grid.Cut(per_head ? rows.log_decay.unsqueeze(3) : rows.log_decay);
  const ChunkDecays decays = MakeDecays(log_decay, hidden);
  const PairProducts products = MakePairProducts(q, k, decays.pairs, hidden);
  // The solver takes the diagonal as 1 and does not read above it.
  const at::Tensor solved = at::linalg_solve_triangular(
      beta * products.k, beta * at::cat({v, k * decays.state}, 4), /*upper=*/false, /*left=*/true,
      /*unitriangular=*/true);
  const int64_t dim_v = v.size(4), dim_k = k.size(4);
  return {.new_values = solved.narrow(4, 0, dim_v),
          .removals = solved.narrow(4, dim_v, dim_k),
          .writers = (k * decays.end).transpose(3, 4),
          .whole = decays.whole,
          .readers = q * decays.state,
          .weights = products.q};
}

struct ScannedChunks {
  std::vector<at::Tensor> states;      // N times S [B, HV, K, V], before each chunk
  std::vector<at::Tensor> new_values;  // N times U [B, HV, C, V]
  at::Tensor final_state;
};
ScannedChunks ScanChunks(const ChunkForm& form, at::Tensor state) {
  // One unbind has one backward, where N selects would each fill a gradient of the whole row.
  const auto new_values = form.new_values.unbind(2), removals = form.removals.unbind(2),
             writers = form.writers.unbind(2), whole = form.whole.unbind(2);
  ScannedChunks scanned;
  for (size_t n = 0; n < whole.size(); ++n) {
    const at::Tensor u = new_values[n] - at::matmul(removals[n], state);
    scanned.states.push_back(state);
    scanned.new_values.push_back(u);
    state = whole[n] * state + at::matmul(writers[n], u);
  }
  scanned.final_state = state;
  return scanned;
}

DeltaRuleOutput ScanRows(const DeltaRows& rows, double scale) {
  const ChunkGrid grid(rows);
  const ChunkForm form = MakeChunkForm(rows, scale, grid);
  const ScannedChunks scanned = ScanChunks(form, rows.initial_state);
  const at::Tensor out = at::matmul(form.readers, at::stack(scanned.states, 2)) +
                         at::matmul(form.weights, at::stack(scanned.new_values, 2));
  return {.out = grid.Join(out).to(rows.v.scalar_type()), .final_state = scanned.final_state};
}

DeltaRuleSummary SummariseRows(const DeltaRows& rows) {
  ChunkForm form = MakeChunkForm(rows, /*scale=*/1, ChunkGrid(rows));
  // The transition is a state with K more columns that starts at I and receives no values.
  const int64_t dim_k = rows.k.size(3), dim_v = rows.v.size(3);
  form.new_values = at::constant_pad_nd(form.new_values, {0, dim_k});
  const at::Tensor identity = at::eye(dim_k, rows.initial_state.options())
                                  .expand({rows.v.size(0), rows.v.size(2), dim_k, dim_k});
  const at::Tensor both = ScanChunks(form, at::cat({rows.initial_state, identity}, 3)).final_state;
  return {.transition = both.narrow(3, dim_v, dim_k).contiguous(),
          .state = both.narrow(3, 0, dim_v).contiguous()};
}

RowDocuments FindDocuments(const SequenceChunks* chunks) {
  if (chunks == nullptr) return {};
  const auto resets = [](const kernels::ChunkEntry& chunk) {
    return (chunk.flags & kernels::kChunkResets) != 0;
  };
  if (std::ranges::none_of(chunks->table.chunks, resets)) return {};
  return {.begin = chunks->runs().begin,
          .started = chunks->runs().sequence == chunks->num_sequences()};
}

// Returns the sequences of a call as separate problems: all rows at once, or, with cu_seqlens, one
// after the other.
std::vector<DeltaRows> CutSequences(const DeltaRuleInputs& in) {
  const at::ScalarType compute = ComputeType(in.q);
  const int64_t num_sequences = NumDeltaSequences(in), batch = in.q.size(0);
  const at::Tensor initial =
      in.initial_state.defined()
          ? in.initial_state.to(compute)
          : at::zeros({num_sequences, in.v.size(2), in.q.size(3), in.v.size(3)},
                      in.q.options().dtype(compute).requires_grad(false));
  const DeltaRows whole = {.q = in.q,
                           .k = in.k,
                           .v = in.v,
                           .log_decay = in.log_decay,
                           .beta = in.beta,
                           .initial_state = initial,
                           .documents = FindDocuments(in.chunks.get())};
  if (num_sequences == batch) return {whole};
  std::vector<DeltaRows> sequences;
  int64_t begin = 0;
  for (int64_t n = 0; n < num_sequences; ++n) {
    const kernels::ChunkTable& table = in.chunks->table;
    int64_t length = 0;
    for (int i = table.sequence_begin[n]; i < table.sequence_begin[n + 1]; ++i)
      length += table.chunks[i].length;
    const auto own = [&](const at::Tensor& x) {
      return x.defined() ? x.narrow(1, begin, length) : x;
    };
    DeltaRows one = {.q = own(in.q),
                     .k = own(in.k),
                     .v = own(in.v),
                     .log_decay = own(in.log_decay),
                     .beta = own(in.beta),
                     .initial_state = initial.narrow(0, n, 1),
                     .documents = {}};
    if (whole.documents.begin.defined())
      one.documents = {.begin = own(whole.documents.begin) - begin,
                       .started = own(whole.documents.started)};
    sequences.push_back(std::move(one));
    begin += length;
  }
  return sequences;
}

}  // namespace

// Products and decays of the pairs of a chunk, operands of each token, and two states per chunk.
double ComposedDeltaRuleActivations(int64_t dim_k, int64_t dim_v, bool per_channel) {
  const double chunk = per_channel ? kDeltaChannelChunk : kDeltaChunk;
  const auto k = static_cast<double>(dim_k), v = static_cast<double>(dim_v);
  const double pairs = per_channel ? chunk * (4 + 2 * k) : 6 * chunk;
  return pairs + 6 * k + 4 * v + 2 * k * v / chunk;
}

DeltaRuleOutput ComposedDeltaRule(const DeltaRuleInputs& inputs, double scale) {
  std::vector<at::Tensor> outs, states;
  for (const DeltaRows& rows : CutSequences(inputs)) {
    const DeltaRuleOutput output = ScanRows(rows, scale);
    outs.push_back(output.out);
    states.push_back(output.final_state);
  }
  if (outs.size() == 1) return {.out = outs[0], .final_state = states[0]};
  return {.out = at::cat(outs, 1), .final_state = at::cat(states, 0)};
}

DeltaRuleSummary ComposedDeltaRuleSummary(const DeltaRuleInputs& inputs) {
  const at::NoGradGuard no_grad;
  DeltaRuleInputs from_zero = inputs;
  from_zero.initial_state.reset();
  std::vector<at::Tensor> transitions, states;
  for (const DeltaRows& rows : CutSequences(from_zero)) {
    const DeltaRuleSummary summary = SummariseRows(rows);
    transitions.push_back(summary.transition);
    states.push_back(summary.state);
  }
  return {.transition = at::cat(transitions, 0), .state = at::cat(states, 0)};
}

}  // namespace halflife::ops
