#include "eager.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/linalg_solve_triangular.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

namespace halflife::bench {
std::vector<at::Tensor> DeltaOperands::leaves() const {
  std::vector<at::Tensor> leaves = {q, k, v, beta};
  if (log_decay.defined()) leaves.push_back(log_decay);
  return leaves;
}

at::Tensor EagerDeltaRule(const DeltaOperands& in, double scale, int64_t size) {
  const auto chunks = [&](const at::Tensor& x) {  // [B, H, N, C, *]
    return x.unflatten(1, {-1, size}).movedim(3, 1).contiguous();
  };
  const at::Tensor q = chunks(in.q) * scale, k = chunks(in.k), v = chunks(in.v);
  const at::Tensor beta = chunks(in.beta.unsqueeze(3));
  at::Tensor q_entry = q, k_entry = k, k_exit = k, through;
  at::Tensor scores, key_scores;
  if (!in.log_decay.defined()) {
    scores = q.matmul(k.mT()).tril();
    key_scores = k.matmul(k.mT());
  } else {
    const bool per_channel = in.log_decay.dim() == 4;
    const at::Tensor g = chunks(per_channel ? in.log_decay : in.log_decay.unsqueeze(3));
    const at::Tensor sums = g.cumsum(3), last = sums.narrow(3, size - 1, 1);
    const at::Tensor entry = sums.exp();
    q_entry = q * entry, k_entry = k * entry, k_exit = k * (last - sums).exp();
    through = last.exp().mT();
    if (per_channel) {
      const at::Tensor k_inverse = (k * (-sums).exp()).mT();
      scores = q_entry.matmul(k_inverse).tril();
      key_scores = k_entry.matmul(k_inverse);
    } else {
      const at::Tensor weights = (sums - sums.mT()).tril().exp().tril();
      scores = q.matmul(k.mT()) * weights;
      key_scores = k.matmul(k.mT()) * weights;
    }
  }
  const at::Tensor system =
      (beta * key_scores).tril(-1) + at::eye(size, q.options().requires_grad(false));
  const at::Tensor solved = at::linalg_solve_triangular(system, beta * at::cat({v, k_entry}, 4),
                                                        /*upper=*/false, /*left=*/true,
                                                        /*unitriangular=*/true);
  const at::Tensor own = solved.narrow(4, 0, v.size(4)),
                   read = solved.narrow(4, v.size(4), k.size(4));
  at::Tensor state = at::zeros({q.size(0), q.size(1), k.size(4), v.size(4)}, q.options());
  // Unlike select(), unbind() has a backward that does not clear a whole tensor for each chunk.
  const auto owns = own.unbind(2), reads = read.unbind(2), q_entries = q_entry.unbind(2);
  const auto weights = scores.unbind(2), k_exits = k_exit.unbind(2);
  const auto kept = through.defined() ? through.unbind(2) : std::vector<at::Tensor>();
  std::vector<at::Tensor> outs;
  for (size_t n = 0; n < owns.size(); ++n) {
    const at::Tensor u = owns[n] - reads[n].matmul(state);
    outs.push_back(q_entries[n].matmul(state) + weights[n].matmul(u));
    state = (kept.empty() ? state : kept[n] * state) + k_exits[n].mT().matmul(u);
  }
  return at::stack(outs, 2).movedim(1, 3).flatten(1, 2);
}

}  // namespace halflife::bench
