// The CPU kernels of the delta rule: against the oracle in fp64, against themselves in fp32 and
// bf16, and properties that hold in bits.
#include <gtest/gtest.h>
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <list>

#include "core/error.h"
#include "kernels/decay_attention/decay_attention_reference.h"
#include "kernels/delta_rule/run_cpu.h"

namespace halflife::kernels {
namespace {

using namespace test::delta;

constexpr DeltaDecay kDecays[] = {DeltaDecay::kNone, DeltaDecay::kPerToken,
                                  DeltaDecay::kPerTokenChannel};
constexpr Gates kExact = {.forward = 1e-12};

// ---- against the oracle ----

TEST(DeltaRuleCpu, EqualsGoldenValues) {
  for (const test::Golden& golden : test::GoldenColumns()) {
    for (const int chunk_size : {1, 4, 64}) {
      Problem problem;
      problem.seed = golden.seed;
      problem.data = test::MakeGoldenProblem(golden);
      problem.config = {.B = 1,
                        .T = 7,
                        .H = 1,
                        .per_head = 2,
                        .K = 3,
                        .V = 2,
                        .decay = golden.decay,
                        .chunk_size = chunk_size};
      const Result got = RunCpu<double>(problem);
      const auto expect = [&](const char* name, size_t at, const Values& want) {
        for (size_t i = 0; i < want.size(); ++i)
          EXPECT_NEAR(got.at(name)[at + i], want[i], 1e-9) << name << ", " << Describe(problem);
      };
      expect("out", 24, golden.out_last[0]);
      expect("out", 26, golden.out_last[1]);
      expect("final_state", 0, golden.state_row);
      expect("dq", 0, golden.dq);
      expect("dk", 0, golden.dk);
      expect("dv", 0, golden.dv);
      expect("dbeta", 0, golden.dbeta);
      if (!golden.dlog_decay.empty()) expect("dlog_decay", 0, golden.dlog_decay);
      expect("dinitial_state", 0, golden.dinitial);
      const Summary summary = Summarise<double>(problem);
      double squares = 0;
      for (const double x : summary.transition) squares += x * x;
      EXPECT_NEAR(squares, golden.transition_squares, 1e-9) << Describe(problem);
      for (size_t i = 0; i < 3; ++i)
        EXPECT_NEAR(summary.transition[i], golden.transition[i], 1e-9) << Describe(problem);
    }
  }
}

TEST(DeltaRuleCpu, EqualsTheOracle) {
  uint64_t seed = 0;
  for (const DeltaDecay decay : kDecays)
    for (const int per_head : {1, 2, 4})
      for (const int T : {1, 15, 16, 17, 63, 64, 65, 200})
        for (const int chunk_size : {1, 16, 64}) {
          const Problem problem = MakeProblem({.B = T < 65 ? 2 : 1,
                                               .T = T,
                                               .H = per_head == 4 ? 1 : 2,
                                               .per_head = per_head,
                                               .K = T < 65 ? 24 : 33,
                                               .V = T < 65 ? 40 : 17,
                                               .decay = decay,
                                               .chunk_size = chunk_size},
                                              ++seed);
          ExpectClose(problem, RunCpu<double>(problem), Oracle(problem), kExact);
        }
}

TEST(DeltaRuleCpu, WideHeadsEqualTheOracle) {
  for (const DeltaDecay decay : kDecays) {
    const Problem problem =
        MakeProblem({.B = 1, .T = 70, .H = 1, .K = 256, .V = 96, .decay = decay}, 5);
    ExpectClose(problem, RunCpu<double>(problem), Oracle(problem), kExact);
  }
}

// fp32 and bf16 against fp64, whose kernel equals the oracle (above). With correlated keys, bf16
// operands have larger errors.
TEST(DeltaRuleCpu, LongRowsInFp32AndBf16) {
  for (const DeltaDecay decay : kDecays)
    for (const Keys keys : {Keys::kRandom, Keys::kCorrelated}) {
      const Problem problem = MakeProblem({.B = 1,
                                           .T = 4096,
                                           .H = 1,
                                           .per_head = 2,
                                           .K = 64,
                                           .V = 64,
                                           .decay = decay,
                                           .keys = keys,
                                           .bf16 = true},
                                          7);
      const Result want = RunCpu<double>(problem);
      ExpectClose(problem, RunCpu<float>(problem), want, {.forward = 2e-6, .gradients = 5e-6});
      const double forward = keys == Keys::kRandom ? 8e-3 : 1.2e-2;
      ExpectClose(problem, RunCpu<Bf16>(problem), want, {.forward = forward, .gradients = 1.5e-2});
    }
}

struct HardCase {
  const char* name;
  Case config;
  double fp32 = 1e-5;
};
std::vector<HardCase> HardCases(DeltaDecay decay) {
  const Case base = {.B = 1, .T = 300, .H = 1, .per_head = 2, .K = 32, .V = 32, .decay = decay};
  std::vector<HardCase> cases;
  const auto add = [&](const char* name, auto change) {
    cases.push_back({name, base});
    change(cases.back().config);
  };
  for (const double beta : {0.0, 1.0, 1.9, 2.0})
    add("equal keys without decay", [&](Case& c) {
      c.keys = Keys::kEqual;
      c.gate = Gate::kOne;
      c.beta_fixed = beta;
      if (beta == 2) c.T = 64;
    });
  // With beta = 2, a token reflects the state along the key, and nothing decays. The scores of
  // equal keys all have the same rounding error, up to 2^-23, whose effect grows with every token.
  add("equal keys that reflect", [](Case& c) {
    c.keys = Keys::kEqual;
    c.gate = Gate::kOne;
    c.beta_fixed = 2;
  });
  cases.back().fp32 = 300 * 4 * 1.2e-7;
  add("correlated keys", [](Case& c) { c.keys = Keys::kCorrelated; });
  // In longer rows the initial state, which is all there is, decays below the range of fp32.
  add("keys of zero", [](Case& c) { c.keys = Keys::kZero, c.T = 100; });
  add("beta of zero", [](Case& c) { c.beta_fixed = 0, c.T = 100; });
  add("resets", [](Case& c) { c.gate = Gate::kResets; });
  add("strong decays", [](Case& c) { c.gate = Gate::kStrong; });
  return cases;
}

TEST(DeltaRuleCpu, HardCasesEqualTheOracle) {
  for (const DeltaDecay decay : kDecays)
    for (const HardCase& hard : HardCases(decay)) {
      SCOPED_TRACE(hard.name);
      const Problem problem = MakeProblem(hard.config, 11);
      const Result want = Oracle(problem);
      ExpectClose(problem, RunCpu<double>(problem), want, kExact);
      ExpectClose(problem, RunCpu<float>(problem), want, {.forward = hard.fp32});
    }
}

TEST(DeltaRuleCpu, DecaysNearOneOverALongRow) {
  for (const DeltaDecay decay : {DeltaDecay::kPerToken, DeltaDecay::kPerTokenChannel}) {
    const Problem problem = MakeProblem(
        {.B = 1, .T = 16384, .H = 1, .K = 32, .V = 32, .decay = decay, .gate = Gate::kNearOne}, 13);
    ExpectClose(problem, RunCpu<float>(problem), RunCpu<double>(problem), {.forward = 1e-5});
  }
}

// ---- identities ----

TEST(DeltaRuleCpu, EqualDecaysInAllChannelsAreADecayPerToken) {
  const Problem token = MakeProblem({.T = 130, .decay = DeltaDecay::kPerToken}, 17);
  Problem channel = token;
  channel.config.decay = channel.data.decay = DeltaDecay::kPerTokenChannel;
  channel.data.log_decay.clear();
  for (const double g : token.data.log_decay)
    channel.data.log_decay.insert(channel.data.log_decay.end(), token.config.K, g);
  Result got = RunCpu<double>(channel);
  Values sums;
  for (size_t i = 0; i < got["dlog_decay"].size(); ++i) {
    if (i % token.config.K == 0) sums.push_back(0);
    sums.back() += got["dlog_decay"][i];
  }
  got["dlog_decay"] = sums;
  ExpectClose(token, got, RunCpu<double>(token), kExact);
}

TEST(DeltaRuleCpu, DecaysOfOneAreNoDecay) {
  Problem token = MakeProblem({.T = 130, .decay = DeltaDecay::kPerToken, .gate = Gate::kOne}, 19);
  Result got = RunCpu<double>(token);
  got.erase("dlog_decay");
  token.config.decay = token.data.decay = DeltaDecay::kNone;
  token.data.log_decay.clear();
  ExpectClose(token, got, RunCpu<double>(token), kExact);
}

TEST(DeltaRuleCpu, BetaOfZeroLeavesPureDecay) {
  const Problem problem =
      MakeProblem({.T = 70, .decay = DeltaDecay::kPerTokenChannel, .beta_fixed = 0}, 23);
  const DeltaReferenceProblem& p = problem.data;
  DecayReferenceProblem decay = {.batch = p.batch,
                                 .seq_len = p.seq_len,
                                 .num_heads = p.num_heads,
                                 .head_dim_k = p.head_dim_k,
                                 .head_dim_v = p.head_dim_v,
                                 .scale = p.scale,
                                 .q = p.q,
                                 .k = Values(p.k.size(), 0.0),
                                 .v = p.v,
                                 .log_decay = p.log_decay,
                                 .initial_state = p.initial_state};
  const DecayReferenceResult want = DecayReference(decay);
  const Result got = RunCpu<double>(problem);
  EXPECT_LE(Compare(got.at("out"), want.out).relative, 1e-12);
  EXPECT_LE(Compare(got.at("final_state"), want.final_state).relative, 1e-12);
}

// With beta = 1 and orthonormal keys, the memory returns each stored value exactly, also after it
// was overwritten.
TEST(DeltaRuleCpu, OrthonormalKeysStoreAndReturnValues) {
  constexpr int kKeys = 32;
  Problem problem = MakeProblem({.B = 1,
                                 .T = 3 * kKeys,
                                 .H = 1,
                                 .K = kKeys,
                                 .V = 8,
                                 .decay = DeltaDecay::kNone,
                                 .beta_fixed = 1},
                                29);
  problem.data.k.assign(problem.data.k.size(), 0.0);
  for (int t = 0; t < 3 * kKeys; ++t) problem.data.k[t * kKeys + t * 5 % kKeys] = 1;
  problem.data.q = problem.data.k;
  problem.data.scale = 1;
  const Result got = RunCpu<double>(problem);
  EXPECT_LE(Compare(got.at("out"), problem.data.v).relative, 1e-12);
  for (int t = 2 * kKeys; t < 3 * kKeys; ++t)
    for (int j = 0; j < 8; ++j)
      EXPECT_NEAR(got.at("final_state")[t * 5 % kKeys * 8 + j], problem.data.v[t * 8 + j], 1e-12);
}

// ---- slices ----

// a [n, r, m] times b [n, m, c].
Values Multiply(const Values& a, const Values& b, int n, int rows, int inner, int columns) {
  Values product(static_cast<size_t>(n) * rows * columns, 0.0);
  for (int i = 0; i < n; ++i)
    for (int r = 0; r < rows; ++r)
      for (int m = 0; m < inner; ++m)
        for (int c = 0; c < columns; ++c)
          product[(i * rows + r) * columns + c] +=
              a[(i * rows + r) * inner + m] * b[(i * inner + m) * columns + c];
  return product;
}
Values Transposed(const Values& a, int n, int rows, int columns) {
  Values result(a.size());
  for (int i = 0; i < n; ++i)
    for (int r = 0; r < rows; ++r)
      for (int c = 0; c < columns; ++c)
        result[(i * columns + c) * rows + r] = a[(i * rows + r) * columns + c];
  return result;
}
Values Added(Values a, const Values& b) {
  for (size_t i = 0; i < a.size(); ++i) a[i] += b[i];
  return a;
}
// Returns tokens [begin, end) of a problem with one row, without document starts.
Problem Slice(const Problem& whole, int begin, int end) {
  Problem part = whole;
  part.config.T = end - begin;
  part.data = SequenceProblem(whole.data, begin, end, 0);
  return part;
}

template <typename S>
void ExpectSlicesEqualTheWhole(const Problem& whole, const std::vector<int>& cuts,
                               const Gates& gates) {
  const Case& c = whole.config;
  const int n = c.value_heads(), num_slices = static_cast<int>(cuts.size()) - 1;
  std::vector<Problem> slices;
  std::vector<Summary> maps;
  for (int i = 0; i < num_slices; ++i) {
    slices.push_back(Slice(whole, cuts[i], cuts[i + 1]));
    maps.push_back(Summarise<S>(slices.back()));
  }
  // Forward: the states between slices from the maps.
  for (int i = 0; i + 1 < num_slices; ++i)
    slices[i + 1].data.initial_state =
        Added(Multiply(maps[i].transition, slices[i].data.initial_state, n, c.K, c.K, c.V),
              maps[i].state);
  for (int i = num_slices - 1; i > 0; --i)
    slices[i - 1].data.dfinal_state = Added(Multiply(Transposed(maps[i].transition, n, c.K, c.K),
                                                     slices[i].data.dfinal_state, n, c.K, c.K, c.V),
                                            maps[i].adjoint);
  Result joined;
  for (int i = 0; i < num_slices; ++i) {
    Result part = RunCpu<S>(slices[i]);
    if (i > 0) part.erase("dinitial_state");
    if (i + 1 < num_slices) part.erase("final_state");
    for (const auto& [name, values] : part)
      joined[name].insert(joined[name].end(), values.begin(), values.end());
  }
  ExpectClose(whole, joined, RunCpu<S>(whole), gates);
}

TEST(DeltaRuleCpu, SlicesComposeToTheWholeRow) {
  for (const DeltaDecay decay : kDecays) {
    const Problem problem = MakeProblem(
        {.B = 1, .T = 300, .H = 1, .per_head = 2, .K = 24, .V = 40, .decay = decay}, 31);
    for (const std::vector<int>& cuts : {std::vector<int>{0, 300},
                                         {0, 100, 300},
                                         {0, 64, 64, 300},
                                         {0, 1, 17, 80, 80, 144, 209, 299, 300}}) {
      ExpectSlicesEqualTheWhole<double>(problem, cuts, kExact);
      ExpectSlicesEqualTheWhole<float>(problem, cuts, {.forward = 1e-6});
    }
  }
}

TEST(DeltaRuleCpu, ADocumentStartEndsTheTransition) {
  for (const DeltaDecay decay : kDecays) {
    const Problem problem = MakeProblem(
        {.B = 2, .T = 100, .H = 1, .K = 8, .V = 8, .decay = decay, .document_starts = {150}}, 37);
    const Summary map = Summarise<double>(problem);
    double first = 0, second = 0;
    for (int i = 0; i < 64; ++i) first += std::abs(map.transition[i]);
    for (int i = 64; i < 128; ++i) second += std::abs(map.transition[i]);
    EXPECT_GT(first, 0);
    EXPECT_EQ(second, 0);
  }
}

// ---- documents ----

std::vector<int32_t> PackedLengths() { return {0, 1, 2, 63, 64, 65, 0, 3}; }

TEST(DeltaRuleCpu, PackedSequencesEqualSeparateRows) {
  std::vector<int32_t> limits = {0};
  for (const int32_t length : PackedLengths()) limits.push_back(limits.back() + length);
  for (const DeltaDecay decay : kDecays)
    for (const int chunk_size : {16, 64}) {
      const Problem problem = MakeProblem({.B = 1,
                                           .T = limits.back(),
                                           .H = 1,
                                           .per_head = 2,
                                           .decay = decay,
                                           .chunk_size = chunk_size,
                                           .cu_seqlens = limits},
                                          41);
      ExpectClose(problem, RunCpu<double>(problem), Oracle(problem), kExact);
    }
}

// Starts at and next to the edges of chunks, in the second row also at its first token.
TEST(DeltaRuleCpu, DocumentStartsEqualSeparateDocuments) {
  for (const DeltaDecay decay : kDecays) {
    const Case config = {.B = 2,
                         .T = 200,
                         .H = 1,
                         .per_head = 2,
                         .decay = decay,
                         .document_starts = {1, 2, 64, 65, 128, 191, 200, 263, 328}};
    const Problem problem = MakeProblem(config, 43);
    const Result want = Oracle(problem), got = RunCpu<double>(problem);
    ExpectClose(problem, got, want, kExact);
    Problem carried = problem;  // the negative control: the state is carried over each start
    carried.config.document_starts.clear();
    const Result wrong = RunCpu<double>(carried);
    EXPECT_GT(Compare(wrong.at("out"), want.at("out")).relative, 1e-3);
    EXPECT_GT(Compare(wrong.at("dv"), want.at("dv")).relative, 1e-3);
    EXPECT_GT(Compare(Summarise<double>(carried).transition, Summarise<double>(problem).transition)
                  .relative,
              0);
  }
}

// ---- properties in bits ----

TEST(DeltaRuleCpu, UnusedChunksChangeNoBit) {
  for (const DeltaDecay decay : kDecays) {
    Problem problem = MakeProblem(
        {.T = 100, .per_head = 2, .decay = decay, .document_starts = {0, 10, 100, 164}}, 44);
    const Result want = RunCpu<float>(problem);
    problem.config.unused_chunks = 5;
    ExpectSameBits(problem, RunCpu<float>(problem), want);
  }
}

TEST(DeltaRuleCpu, LaterTokensDoNotChangeEarlierOutputs) {
  for (const DeltaDecay decay : kDecays)
    for (const int changed : {1, 15, 16, 40, 63, 64, 100}) {
      const Problem problem = MakeProblem({.B = 1, .T = 130, .H = 1, .decay = decay}, 47);
      Problem other = problem;
      const auto change = [&](Values& x) {
        const size_t width = x.size() / 130;
        for (size_t i = changed * width; i < x.size(); ++i) x[i] *= 0.5;
      };
      for (Values* x :
           {&other.data.q, &other.data.k, &other.data.v, &other.data.beta, &other.data.log_decay})
        change(*x);
      Values before = RunCpu<float>(problem)["out"], after = RunCpu<float>(other)["out"];
      const size_t kept = static_cast<size_t>(changed) * problem.config.V;
      EXPECT_NE(before, after);
      before.resize(kept);
      after.resize(kept);
      EXPECT_EQ(before, after) << "token " << changed << ", " << Describe(problem);
    }
}

TEST(DeltaRuleCpu, ThreadsDoNotChangeBits) {
  const int threads = omp_get_max_threads();
  for (const DeltaDecay decay : kDecays) {
    const Problem problem = MakeProblem({.T = 150, .H = 2, .per_head = 3, .decay = decay}, 53);
    omp_set_num_threads(1);
    const Result want = RunCpu<float>(problem);
    omp_set_num_threads(3);
    ExpectSameBits(problem, RunCpu<float>(problem), want);
  }
  omp_set_num_threads(threads);
}

TEST(DeltaRuleCpu, StepsAfterAPrefillContinueIt) {
  for (const DeltaDecay decay : kDecays) {
    const Problem problem =
        MakeProblem({.B = 1, .T = 90, .H = 2, .per_head = 2, .decay = decay}, 59);
    const Case& c = problem.config;
    const Result want = Oracle(problem);
    Call<double> prefill(Slice(problem, 0, 70));
    cpu::DeltaRuleForward(prefill.grads.forward);
    Call<double> whole(problem);
    const DeltaRuleArgs& args = whole.grads.forward;
    DeltaRuleStepArgs step;
    step.batch = 1;
    step.num_heads = c.H;
    step.num_value_heads = c.value_heads();
    step.head_dim_k = c.K;
    step.head_dim_v = c.V;
    step.decay = c.decay;
    step.scale = problem.data.scale;
    step.state = prefill.final_state.data.data();
    const auto at = [](TensorView view, int t) {
      view.data =
          view.data == nullptr ? nullptr : static_cast<double*>(view.data) + t * view.stride_t;
      return view;
    };
    for (int t = 70; t < 90; ++t) {
      step.q = at(args.q, t), step.k = at(args.k, t), step.v = at(args.v, t);
      step.out = at(args.out, t), step.beta = at(args.beta, t);
      step.log_decay = at(args.log_decay, t);
      cpu::DeltaRuleStep(step);
    }
    const size_t first = size_t{70} * c.value_heads() * c.V;
    const Values out = whole.out.values();
    EXPECT_LE(Compare(Values(out.begin() + first, out.end()),
                      Values(want.at("out").begin() + first, want.at("out").end()))
                  .relative,
              1e-12);
    EXPECT_LE(Compare(prefill.final_state.values(), want.at("final_state")).relative, 1e-12);
  }
}

// A tensor [2, T, heads, width] and a copy of it in another layout.
struct Relocated {
  TensorView original, moved;
  int T, heads, width;
  std::vector<float> memory;

  // Stores heads before tokens, with gaps between the rows, and replaces `view` by the copy.
  Relocated(TensorView& view, int the_T, int the_heads, int the_width)
      : original(view), moved(view), T(the_T), heads(the_heads), width(the_width) {
    if (view.data == nullptr) return;
    moved.stride_t = width + 3;
    moved.stride_h = moved.stride_t * T;
    moved.stride_b = moved.stride_h * heads;
    memory.resize(2 * moved.stride_b);
    moved.data = memory.data();
    Copy(original, moved);
    view = moved;
  }
  void CopyBack() const {
    if (original.data != nullptr) Copy(moved, original);
  }
  void Copy(const TensorView& from, const TensorView& to) const {
    const auto row = [](const TensorView& view, int b, int t, int h) {
      return static_cast<float*>(view.data) + b * view.stride_b + t * view.stride_t +
             h * view.stride_h;
    };
    for (int b = 0; b < 2; ++b)
      for (int t = 0; t < T; ++t)
        for (int h = 0; h < heads; ++h) std::copy_n(row(from, b, t, h), width, row(to, b, t, h));
  }
};

TEST(DeltaRuleCpu, StridesDoNotChangeBits) {
  for (const DeltaDecay decay : kDecays) {
    const Problem problem = MakeProblem({.T = 70, .H = 2, .per_head = 2, .decay = decay}, 67);
    const Result want = RunCpu<float>(problem);
    Call<float> call(problem);
    DeltaRuleGradArgs& grads = call.grads;
    DeltaRuleArgs& args = grads.forward;
    const Case& c = problem.config;
    const int decays = decay == DeltaDecay::kPerTokenChannel ? c.K : 1;
    std::list<Relocated> tensors;
    for (TensorView* view : {&args.q, &args.k, &grads.dq, &grads.dk})
      tensors.emplace_back(*view, c.T, 2, c.K);
    for (TensorView* view : {&args.v, &args.out, &grads.dout, &grads.dv})
      tensors.emplace_back(*view, c.T, 4, c.V);
    for (TensorView* view : {&args.log_decay, &grads.dlog_decay})
      tensors.emplace_back(*view, c.T, 4, decays);
    for (TensorView* view : {&args.beta, &grads.dbeta}) tensors.emplace_back(*view, c.T, 4, 1);
    cpu::DeltaRuleForward(args);
    cpu::DeltaRuleBackward(grads);
    for (const Relocated& tensor : tensors) tensor.CopyBack();
    ExpectSameBits(problem, call.Get(/*backward=*/true), want);
  }
}

// ---- NaN ----

// Tokens of the second of three documents, and the token of head 0 that has a NaN.
constexpr int kNanT = 200, kNanBegin = 30, kNanEnd = 150, kNan = 40;

// Compares what the NaN must not reach: other documents, the other head, earlier outputs and, for a
// NaN in q, later outputs.
void ExpectNanStays(const Problem& problem, const Result& got, const Result& clean, bool in_query) {
  for (const auto& [name, values] : clean) {
    if (name == "dinitial_state" || name == "final_state") {
      EXPECT_EQ(got.at(name), values) << name;  // these belong to the other documents
      continue;
    }
    const size_t width = values.size() / kNanT / 2;  // of one token and head
    for (size_t i = 0; i < values.size(); ++i) {
      const int token = static_cast<int>(i / width / 2), head = static_cast<int>(i / width % 2);
      const bool elsewhere = head == 1 || token < kNanBegin || token >= kNanEnd;
      const bool unread = name == "out" && (token < kNan || (in_query && token > kNan));
      if (elsewhere || unread) {
        ASSERT_EQ(got.at(name)[i], values[i])
            << name << ", token " << token << ", " << Describe(problem);
      }
    }
    if (name == "out") {
      EXPECT_TRUE(std::isnan(got.at(name)[kNan * 2 * width])) << Describe(problem);
    }
  }
}

TEST(DeltaRuleCpu, ANanStaysInItsDocumentAndHead) {
  for (const DeltaDecay decay : kDecays)
    for (Values DeltaReferenceProblem::*operand :
         {&DeltaReferenceProblem::q, &DeltaReferenceProblem::k, &DeltaReferenceProblem::v,
          &DeltaReferenceProblem::beta, &DeltaReferenceProblem::log_decay}) {
      Problem problem = MakeProblem(
          {.B = 1, .T = kNanT, .H = 2, .decay = decay, .document_starts = {kNanBegin, kNanEnd}},
          71);
      Values& values = problem.data.*operand;
      if (values.empty()) continue;
      const Result clean = RunCpu<float>(problem);
      values[kNan * values.size() / kNanT] = std::nan("");
      ExpectNanStays(problem, RunCpu<float>(problem), clean, operand == &DeltaReferenceProblem::q);
    }
}

// ---- calls that are rejected ----

template <typename Function>
void ExpectError(const char* message, Function function) {
  try {
    function();
    ADD_FAILURE() << "accepted, without: " << message;
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find(message), std::string::npos) << error.what();
  }
}

TEST(DeltaRuleCpu, RejectsCallsThatItCannotRun) {
  const Problem problem = MakeProblem({.B = 1, .T = 20, .H = 1, .per_head = 2}, 61);
  const auto expect = [&](const char* message, auto change) {
    Call<float> call(problem);
    change(call);
    ExpectError(message, [&] {
      cpu::DeltaRuleForward(call.grads.forward);
      cpu::DeltaRuleBackward(call.grads);
    });
  };
  expect("beta is missing", [](Call<float>& call) { call.grads.forward.beta.data = nullptr; });
  expect("log_decay is bf16 with q of fp32. Use fp32.",
         [](Call<float>& call) { call.grads.forward.log_decay.dtype = DType::kBF16; });
  expect("k is missing", [](Call<float>& call) { call.grads.forward.k.data = nullptr; });
  expect("chunks without their table",
         [](Call<float>& call) { call.grads.forward.chunks = nullptr; });
  expect("but the batch is [1, 20] and a chunk has at most 64 tokens",
         [](Call<float>& call) { call.table.chunks[0].length = 65; });
  expect("would be written twice at one address",
         [](Call<float>& call) { call.grads.forward.out.stride_t = 1; });
  expect("a backward without the forward's checkpoints",
         [](Call<float>& call) { call.grads.forward.checkpoints = nullptr; });
  expect("bytes of workspace, got none",
         [](Call<float>& call) { call.grads.forward.workspace = nullptr; });
  expect("dv is bf16. Pass fp32.", [](Call<float>& call) { call.grads.dv.dtype = DType::kBF16; });
}

}  // namespace
}  // namespace halflife::kernels
