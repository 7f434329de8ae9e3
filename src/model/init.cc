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
                float* out) const {
  HL_CHECK(kind_ != Kind::kTruncatedNormal || cut_ >= 0.5, "a normal truncated at ", cut_,
           " standard deviations takes too many draws. Truncate it at 0.5 or more.");
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  const int64_t channels = shape.empty() ? 1 : shape.back();
  const RandomKey key =
      MakeRandomKey(seed, RandomPurpose::kInit, NameHash32(name.data(), name.size()));
  at::parallel_for(0, (count + kPiece - 1) / kPiece, 1, [&](int64_t begin, int64_t end) {
    FillPart({begin * kPiece, std::min(count, end * kPiece)}, channels, key, out);
  });
}

void Init::FillPart(Part part, int64_t channels, RandomKey key, float* out) const {
  if (kind_ == Kind::kConstant) {
    std::fill(out + part.begin, out + part.end, static_cast<float>(factor_ * low_));
    return;
  }
  const bool normal = kind_ == Kind::kNormal || kind_ == Kind::kTruncatedNormal;
  for (int64_t first = part.begin; first < part.end; first += 4) {  // A draw has four elements.
    const RandomCounter draw = Draw(key, static_cast<uint64_t>(first / 4), 0, 0);
    double normals[4] = {};
    if (normal) Normals(draw, normals);
    for (int64_t i = first; i < std::min(part.end, first + 4); ++i) {
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
        case Kind::kLogUniform:
          value = low_ * std::pow(high_ / low_, uniform);
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
      out[i] = static_cast<float>(factor_ * value);
    }
  }
}

}  // namespace halflife::model
