// Keeps the plans of earlier calls of decay attention. All layers of a model ask for the same plan,
// and making it and describing it takes as long as several kernel launches.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <tuple>
#include <type_traits>

#include "kernels/decay_attention/decay_attention_args.h"

namespace halflife::ops {

// Used by one thread. Holds the plans of the last 16 different questions.
class DecayPlanCache {
 public:
  struct Question {
    kernels::DecayAttentionArgs args;
    kernels::DeviceLimits limits;
    kernels::PlanRequest request;
  };

  // Returns MakePlan() of the question. Calls note(plan) if the plan was not here.
  template <typename Note>
  const kernels::DecayAttentionPlan& Find(const Question& question, const Note& note) {
    const Question asked = WithoutAddresses(question);
    for (const Entry& entry : entries_)
      if (entry.question && AreEqual(*entry.question, asked)) return entry.plan;
    Entry& oldest = entries_[oldest_];
    oldest.plan = kernels::MakePlan(question.args, question.limits, question.request);  // may throw
    oldest.question = asked;
    oldest_ = (oldest_ + 1) % entries_.size();
    note(oldest.plan);
    return oldest.plan;
  }

 private:
  struct Entry {
    std::optional<Question> question;
    kernels::DecayAttentionPlan plan = {};
  };

  // All fields. A new field must be added here, which the sizes recall.
  static auto FieldsOf(const kernels::TensorView& x) {
    static_assert(sizeof(x) == 40);
    return std::tie(x.data, x.stride_b, x.stride_t, x.stride_h, x.dtype);
  }
  static bool AreEqual(const Question& a, const Question& b) {
    static_assert(sizeof(a.args) == 376 && sizeof(a.limits) == 24 && sizeof(a.request) == 16);
    const auto sizes = [](const kernels::DecayAttentionArgs& x) {
      return std::tie(x.batch, x.seq_len, x.num_heads, x.num_q_heads, x.num_k_heads, x.num_v_heads,
                      x.num_decay_heads, x.head_dim_k, x.head_dim_v, x.decay_kind, x.norm_kind,
                      x.scale, x.norm_eps, x.num_sequences, x.num_chunks);
    };
    const auto views = [](const kernels::DecayAttentionArgs& x) {
      return std::tuple(FieldsOf(x.q), FieldsOf(x.k), FieldsOf(x.v), FieldsOf(x.out),
                        FieldsOf(x.log_decay), FieldsOf(x.key_scale));
    };
    const auto addresses = [](const kernels::DecayAttentionArgs& x) {
      return std::tie(x.chunks, x.sequence_begin, x.initial_state, x.final_state, x.initial_norm,
                      x.final_norm, x.norm_denom, x.checkpoints, x.workspace);
    };
    const auto outside = [](const Question& x) {
      return std::tie(x.limits.is_cuda, x.limits.num_sms, x.limits.shared_memory_bytes,
                      x.limits.warpgroups, x.request.chunk_size, x.request.num_segments,
                      x.request.batch_tiles, x.request.warpgroups);
    };
    return sizes(a.args) == sizes(b.args) && views(a.args) == views(b.args) &&
           addresses(a.args) == addresses(b.args) && outside(a) == outside(b);
  }

  // Returns the question without addresses, keeping which tensors exist and how their addresses are
  // aligned, because a plan depends on both. An address that is not listed here only reduces the
  // number of hits.
  static Question WithoutAddresses(Question question) {
    constexpr uintptr_t kAlignment = 256;
    const auto forget = [](auto*& address) {
      if (address == nullptr) return;
      const uintptr_t rest = reinterpret_cast<uintptr_t>(address) % kAlignment;
      address = reinterpret_cast<std::remove_reference_t<decltype(address)>>(kAlignment + rest);
    };
    kernels::DecayAttentionArgs& args = question.args;
    for (kernels::TensorView* view :
         {&args.q, &args.k, &args.v, &args.out, &args.log_decay, &args.key_scale})
      forget(view->data);
    forget(args.chunks), forget(args.sequence_begin);
    forget(args.initial_state), forget(args.initial_norm);
    return question;
  }

  std::array<Entry, 16> entries_;
  size_t oldest_ = 0;
};

}  // namespace halflife::ops
