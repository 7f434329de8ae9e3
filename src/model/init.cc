#include "model/init.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>

#include "core/error.h"

namespace halflife::model {
namespace {

// Elements that one thread fills at a time.
constexpr int64_t kPiece = 1 << 16;

// Returns the four standard normals of one draw.
void Normals(const RandomCounter& draw, double* out) {
  const NormalPair low = ToNormal(draw.x[0], draw.x[1]), high = ToNormal(draw.x[2], draw.x[3]);
  out[0] = low.a, out[1] = low.b, out[2] = high.a, out[3] = high.b;
}

// Returns the element's first normal within [-cut, cut]. `first` is its normal of attempt 0, which
// is the value of the untruncated initialiser.
double DrawWithin(RandomKey key, int64_t element, double first, double cut) {
  double value = first;
  for (uint32_t attempt = 1; !(std::abs(value) <= cut); ++attempt) {
    double normals[4];
    Normals(Draw(key, static_cast<uint64_t>(element / 4), attempt, 0), normals);
    value = normals[element % 4];
  }
  return value;
}

}  // namespace

Init Init::UniformOfFanIn(int64_t fan_in) {
  const double bound = 1 / std::sqrt(static_cast<double>(fan_in));
  return Uniform(-bound, bound);
}

void Init::Fill(const std::string& name, const std::vector<int64_t>& shape, uint64_t seed,
                Part part, float* out) const {
  HL_CHECK(kind_ != Kind::kTruncatedNormal || cut_ >= 0.5, "a normal truncated at ", cut_,
           " standard deviations takes too many draws. Truncate it at 0.5 or more.");
  const int64_t count = part.end - part.begin;
  const int64_t channels = shape.empty() ? 1 : shape.back();
  const RandomKey key =
      MakeRandomKey(seed, RandomPurpose::kInit, NameHash32(name.data(), name.size()));
  at::parallel_for(0, (count + kPiece - 1) / kPiece, 1, [&](int64_t begin, int64_t end) {
    const int64_t first = begin * kPiece, last = std::min(count, end * kPiece);
    FillPiece({part.begin + first, part.begin + last}, channels, key, out + first);
  });
}

void Init::FillPiece(Part piece, int64_t channels, RandomKey key, float* out) const {
  if (kind_ == Kind::kConstant) {
    std::fill(out, out + (piece.end - piece.begin), static_cast<float>(factor_ * low_));
    return;
  }
  const bool normal = kind_ == Kind::kNormal || kind_ == Kind::kTruncatedNormal;
  // A draw has four elements. A piece may begin or end within one.
  for (int64_t first = piece.begin / 4 * 4; first < piece.end; first += 4) {
    const RandomCounter draw = Draw(key, static_cast<uint64_t>(first / 4), 0, 0);
    double normals[4] = {};
    if (normal) Normals(draw, normals);
    for (int64_t i = std::max(first, piece.begin); i < std::min(piece.end, first + 4); ++i) {
      const double uniform = ToUniform(draw.x[i - first]);
      double value = low_;
      switch (kind_) {
        case Kind::kConstant:
          break;
        case Kind::kNormal:
          value = high_ * normals[i - first];
          break;
        case Kind::kTruncatedNormal:
          value = high_ * DrawWithin(key, i, normals[i - first], cut_);
          break;
        case Kind::kUniform:
          value = low_ + (high_ - low_) * uniform;
          break;
        case Kind::kRange:
          if (channels > 1)
            value += (high_ - low_) * static_cast<double>(i % channels) /
                     static_cast<double>(channels - 1);
          break;
        case Kind::kFormula:
          value = formula_(i, uniform);
          break;
      }
      out[i - piece.begin] = static_cast<float>(factor_ * value);
    }
  }
}

Init BiasOfSteps(double low, double high) {
  return Init::Of([low, high](int64_t, double uniform) {
    const double step = low * std::pow(high / low, uniform);
    return step + std::log(-std::expm1(-step));
  });
}

}  // namespace halflife::model
