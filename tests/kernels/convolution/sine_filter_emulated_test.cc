// The emulated CUDA kernels of a sine filter equal their definition in fp64.
#include "kernels/convolution/sine_filter_args.h"
#include "kernels/rows_support.h"

namespace halflife::kernels {
namespace {

using test::Array;
using test::ExpectClose;
using test::Random;
using test::Values;

struct Case {
  int num_tokens, inputs, width, num_layers, channels;
  int rows_beyond = 0;  // Input rows that are not read.
  bool added = false;   // Gradients are added to the outputs.

  int num_rows() const { return num_tokens + rows_beyond; }
  int inputs_of(int layer) const { return layer == 0 ? inputs : width; }
};

std::string Name(const Case& c) {
  return "T " + std::to_string(c.num_tokens) + " of " + std::to_string(c.num_rows()) + ", " +
         std::to_string(c.inputs) + " inputs, " + std::to_string(c.num_layers) + " layers of " +
         std::to_string(c.width) + " for " + std::to_string(c.channels) + " channels" +
         (c.added ? ", added" : "");
}

// Tokens around blocks of 16, with unused rows in the last block and after it; layers with fewer
// and more channels than inputs, and with more than a block has threads.
const Case kCases[] = {{1, 3, 5, 1, 1},           {16, 3, 8, 2, 8},
                       {17, 3, 8, 3, 20, 40},     {15, 3, 6, 4, 13, 1},
                       {33, 7, 4, 2, 9, 3, true}, {20, 3, 70, 3, 150, 20, true},
                       {3, 1, 1, 3, 3, 2, true}};

struct Problem {
  explicit Problem(const Case& c)
      : x(Random(int64_t{1} * c.num_rows() * c.inputs, 1)),
        frequency(Random(c.width, 2)),
        dhidden(Random(int64_t{1} * c.num_tokens * c.width, 3)),
        output(Random(int64_t{1} * c.channels * c.width, 4, 1 / std::sqrt(c.width))) {
    for (int i = 0; i < c.num_layers; ++i) {
      const int inputs = c.inputs_of(i);
      weights.emplace_back(Random(int64_t{1} * c.width * inputs, 10 + i, 1 / std::sqrt(inputs)));
      biases.emplace_back(Random(c.width, 20 + i));
    }
  }
  SineFilterArgs Args(const Case& c) const {
    SineFilterArgs args;
    args.x = x.data(), args.frequency = frequency.data(), args.output = output.data();
    for (int i = 0; i < c.num_layers; ++i)
      args.weights[i] = weights[i].data(), args.biases[i] = biases[i].data();
    args.num_layers = c.num_layers, args.num_tokens = c.num_tokens;
    args.inputs = c.inputs, args.width = c.width, args.channels = c.channels;
    return args;
  }
  Array<float> x, frequency, dhidden, output;
  std::vector<Array<float>> weights, biases;
};

// The gradients of parameters: weight and bias of each layer, then the frequency.
struct Results {
  Values hidden, out, dx;
  std::vector<Values> learned;
};

Results OnDevice(const Case& c, const Problem& p) {
  const SineFilterArgs args = p.Args(c);
  const double before = c.added ? 0.5 : std::nan("");
  Array<float> hidden(int64_t{1} * c.num_tokens * c.width),
      out(int64_t{1} * c.num_tokens * c.channels), dx(Values(p.x.values().size(), before)),
      dfrequency(Values(c.width, before));
  std::vector<Array<float>> places;
  SineWeightGradients weights;
  for (int i = 0; i < c.num_layers; ++i) {
    places.emplace_back(Values(p.weights[i].values().size(), before));
    places.emplace_back(Values(c.width, before));
  }
  for (int i = 0; i < c.num_layers; ++i) {
    weights.weights[i] = {places[2 * i].data(), c.added};
    weights.biases[i] = {places[2 * i + 1].data(), c.added};
  }
  weights.frequency = {dfrequency.data(), c.added};
  Array<float> partials(Values(SineBlocks(c.num_tokens) * args.num_columns(), std::nan("")));
  cuda::SineFilterForward(args, {hidden.data(), out.data()}, nullptr);
  cuda::SineFilterBackward(args, p.dhidden.data(), {dx.data(), c.num_rows(), c.added}, weights,
                           partials.data(), nullptr);
  Results r = {hidden.values(), out.values(), dx.values(), {}};
  for (const Array<float>& place : places) r.learned.push_back(place.values());
  r.learned.push_back(dfrequency.values());
  return r;
}

// The formulas of sine_filter_args.h in fp64, token by token.
class Definition {
 public:
  Definition(const Case& c, const Problem& p) : c_(c), x_(p.x.values()), f_(p.frequency.values()) {
    const double before = c.added ? 0.5 : 0.0;
    result.dx = Values(x_.size(), before);
    for (int i = 0; i < c.num_layers; ++i) {
      w_.push_back(p.weights[i].values()), b_.push_back(p.biases[i].values());
      result.learned.emplace_back(w_[i].size(), before);
      result.learned.emplace_back(c.width, before);
    }
    result.learned.emplace_back(c.width, before);
    output_ = p.output.values();
    const Values dhidden = p.dhidden.values();
    for (int t = 0; t < c.num_tokens; ++t)
      AddToken(t, Values(dhidden.begin() + t * c.width, dhidden.begin() + (t + 1) * c.width));
  }
  Results result;

 private:
  void AddToken(int t, Values da) {
    std::vector<Values> a = {Values(x_.begin() + t * c_.inputs, x_.begin() + (t + 1) * c_.inputs)};
    std::vector<Values> p;
    for (int i = 0; i < c_.num_layers; ++i) {
      p.push_back(b_[i]);
      a.emplace_back(c_.width);
      for (int o = 0; o < c_.width; ++o) {
        for (int k = 0; k < c_.inputs_of(i); ++k)
          p[i][o] += w_[i][o * c_.inputs_of(i) + k] * a[i][k];
        a[i + 1][o] = std::sin(f_[o] * p[i][o]);
      }
    }
    result.hidden.insert(result.hidden.end(), a.back().begin(), a.back().end());
    for (int channel = 0; channel < c_.channels; ++channel) {
      double sum = 0;
      for (int k = 0; k < c_.width; ++k) sum += output_[channel * c_.width + k] * a.back()[k];
      result.out.push_back(sum);
    }
    for (int i = c_.num_layers - 1; i >= 0; --i) {
      Values before(c_.inputs_of(i));
      for (int o = 0; o < c_.width; ++o) {
        const double g = da[o] * std::cos(f_[o] * p[i][o]), dp = g * f_[o];
        result.learned.back()[o] += g * p[i][o];
        result.learned[2 * i + 1][o] += dp;
        for (int k = 0; k < c_.inputs_of(i); ++k) {
          result.learned[2 * i][o * c_.inputs_of(i) + k] += dp * a[i][k];
          before[k] += dp * w_[i][o * c_.inputs_of(i) + k];
        }
      }
      da = before;
    }
    for (int k = 0; k < c_.inputs; ++k) result.dx[t * c_.inputs + k] += da[k];
  }

  Case c_;
  Values x_, f_, output_;
  std::vector<Values> w_, b_;
};

// Each layer multiplies the error of a sum, about 2^-22, by weights of norm 1 and a frequency of
// about
// 2. Gradients do the same.
constexpr double kFp32 = 1e-5;

TEST(SineFilterEmulated, IsTheDefinition) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(Name(c));
    const Problem problem(c);
    const Results got = OnDevice(c, problem), want = Definition(c, problem).result;
    ExpectClose<float>("hidden", got.hidden, want.hidden, kFp32);
    ExpectClose<float>("out", got.out, want.out, kFp32);
    ExpectClose<float>("dx", got.dx, want.dx, kFp32);
    for (size_t i = 0; i < want.learned.size(); ++i)
      ExpectClose<float>("learned " + std::to_string(i), got.learned[i], want.learned[i], kFp32);
  }
}

TEST(SineFilterEmulated, FitsUpToADevicesSharedMemory) {
  SineFilterArgs args;
  args.num_layers = 3, args.inputs = 3, args.width = 128;
  EXPECT_TRUE(cuda::SineFilterFit(args, 163 << 10));
  EXPECT_FALSE(cuda::SineFilterFit(args, 99 << 10));
  args.width = 64;
  EXPECT_TRUE(cuda::SineFilterFit(args, 99 << 10));
  args.width = 220;
  EXPECT_FALSE(cuda::SineFilterFit(args, 227 << 10));
}

}  // namespace
}  // namespace halflife::kernels
