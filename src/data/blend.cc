#include "data/blend.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/error.h"
#include "core/hash.h"
#include "core/philox.h"
#include "data/sample_order.h"

namespace halflife::data {
namespace {

// Samples that are permuted among each other. Within a block, a source with share p may be
// p (1 - p) kBlendBlock <= 4 samples ahead or behind, at both ends of a range. The order before the
// permutation deviates by less than 1 at each end. The sum is below 10.
constexpr int kBlendBlock = 16;
constexpr int kBlendBlocks = kBlendCycle / kBlendBlock;

// Returns a sequence in which every prefix of t samples has less than 1 sample more or less than
// c t / C of each source. Earliest deadline first finds it: sample x of a source may come when
// c (t + 1) / C > x, and must be among the first C (x + 1) / c samples. (Steiner and Yeomans, 1993,
// "Level schedules for mixed-model, just-in-time processes".)
std::vector<uint16_t> EvenOrder(const std::vector<uint32_t>& counts) {
  std::vector<uint16_t> order;
  std::vector<uint64_t> taken(counts.size(), 0);
  for (uint64_t t = 0; t < kBlendCycle; ++t) {
    size_t next = counts.size();
    for (size_t i = 0; i < counts.size(); ++i) {
      if (taken[i] * kBlendCycle >= counts[i] * (t + 1)) continue;
      // The deadlines (x + 1) / c, compared as fractions.
      if (next == counts.size() || (taken[i] + 1) * counts[next] < (taken[next] + 1) * counts[i])
        next = i;
    }
    HL_CHECK(next < counts.size(), "a cycle of a blend has no source for sample ", t);
    ++taken[next];
    order.push_back(static_cast<uint16_t>(next));
  }
  return order;
}

}  // namespace

uint64_t BlendSeed(uint64_t run_seed, const std::string& name) {
  return SplitMix64(run_seed ^ HashBytes(name).lo);
}

std::vector<uint32_t> BlendCounts(std::span<const double> weights) {
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  HL_CHECK(sum > 0 && weights.size() <= kMaxBlendSources, "a blend of ", weights.size(),
           " sources with the sum of weights ", sum);
  std::vector<uint32_t> counts;
  std::vector<std::pair<double, size_t>> remainders;
  int64_t left = kBlendCycle;
  for (size_t i = 0; i < weights.size(); ++i) {
    const double exact = weights[i] / sum * kBlendCycle;
    counts.push_back(weights[i] > 0 ? std::max<uint32_t>(static_cast<uint32_t>(exact), 1) : 0);
    // Equal remainders go to the earlier source.
    if (weights[i] > 0) remainders.emplace_back(counts.back() - exact, i);
    left -= counts.back();
  }
  std::ranges::sort(remainders);
  for (size_t i = 0; left > 0; i = (i + 1) % remainders.size(), --left)
    ++counts[remainders[i].second];
  // Raising small sources to 1 may have used more than the cycle.
  for (; left < 0; ++left) --*std::ranges::max_element(counts);
  return counts;
}

Blend::Blend(std::vector<BlendSource> sources, uint64_t seed)
    : sources_(std::move(sources)), seed_(seed) {}

Blend::Cycle Blend::MakeCycle(const std::vector<uint32_t>& counts) {
  Cycle cycle = {.order = EvenOrder(counts), .before = {}};
  std::vector<uint16_t> before(counts.size(), 0);
  for (int block = 0; block <= kBlendBlocks; ++block) {
    cycle.before.insert(cycle.before.end(), before.begin(), before.end());
    for (int i = 0; block < kBlendBlocks && i < kBlendBlock; ++i)
      ++before[cycle.order[static_cast<size_t>(block * kBlendBlock + i)]];
  }
  return cycle;
}

void Blend::Begin(uint64_t first_sample, std::vector<uint32_t> counts) {
  if (!segments_.empty() && segments_.back().counts == counts) return;
  std::vector<uint64_t> base =
      segments_.empty() ? std::vector<uint64_t>(sources_.size(), 0) : Drawn(first_sample);
  if (!segments_.empty() && segments_.back().first_sample == first_sample) {
    segments_.pop_back();
    cycles_.pop_back();
  }
  Restore({.first_sample = first_sample, .counts = std::move(counts), .base = std::move(base)});
}

void Blend::Restore(BlendSegment segment) {
  HL_CHECK(segment.counts.size() <= sources_.size() && segment.base.size() <= sources_.size() &&
               (segments_.empty() || segment.first_sample > segments_.back().first_sample),
           "a segment of a blend at sample ", segment.first_sample);
  segment.counts.resize(sources_.size(), 0);
  segment.base.resize(sources_.size(), 0);
  HL_CHECK(
      std::accumulate(segment.counts.begin(), segment.counts.end(), uint64_t{0}) == kBlendCycle,
      "a blend's segment at sample ", segment.first_sample, " does not have ", kBlendCycle,
      " samples per cycle");
  cycles_.push_back(MakeCycle(segment.counts));
  segments_.push_back(std::move(segment));
}

Blend::Place Blend::Find(uint64_t sample) const {
  const auto above = std::ranges::upper_bound(segments_, sample, {}, &BlendSegment::first_sample);
  HL_CHECK(above != segments_.begin(), "sample ", sample, " is before the segments of a blend");
  const auto index = static_cast<size_t>(above - segments_.begin() - 1);
  const uint64_t offset = sample - segments_[index].first_sample;
  const auto in_cycle = static_cast<int>(offset % kBlendCycle);
  return {.segment = segments_[index],
          .cycle = cycles_[index],
          .cycle_number = offset / kBlendCycle,
          .block = in_cycle / kBlendBlock,
          .in_block = in_cycle % kBlendBlock};
}

int Blend::SourceIn(const Place& place, int in_block) const {
  const uint64_t seed = SplitMix64(seed_ ^ place.segment.first_sample);
  const uint64_t block = place.cycle_number * kBlendBlocks + static_cast<uint64_t>(place.block);
  const uint64_t permuted =
      PermuteIndex(static_cast<uint64_t>(in_block), kBlendBlock, seed, /*epoch=*/block);
  return place.cycle.order[static_cast<size_t>(place.block * kBlendBlock) + permuted];
}

Blend::Row Blend::At(uint64_t sample) const {
  const Place place = Find(sample);
  const int source = SourceIn(place, place.in_block);
  const auto s = static_cast<size_t>(source);
  uint64_t number = place.segment.base[s] + place.cycle_number * place.segment.counts[s] +
                    place.cycle.before[static_cast<size_t>(place.block) * sources_.size() + s];
  for (int i = 0; i < place.in_block; ++i) number += SourceIn(place, i) == source ? 1 : 0;
  const auto num_windows = static_cast<uint64_t>(sources_[s].num_windows);
  HL_CHECK(num_windows > 0, "sample ", sample, " is of the removed source ", sources_[s].name);
  return {.source = source,
          .number = number,
          .window = static_cast<int64_t>(PermuteIndex(number % num_windows, num_windows,
                                                      sources_[s].seed, number / num_windows))};
}

std::vector<uint64_t> Blend::Drawn(uint64_t num_samples) const {
  if (num_samples == 0) return std::vector<uint64_t>(sources_.size(), 0);
  // The last of these samples is in the segment whose counts apply.
  const Place place = Find(num_samples - 1);
  std::vector<uint64_t> drawn = place.segment.base;
  for (size_t s = 0; s < sources_.size(); ++s)
    drawn[s] += place.cycle_number * place.segment.counts[s] +
                place.cycle.before[static_cast<size_t>(place.block) * sources_.size() + s];
  for (int i = 0; i <= place.in_block; ++i) ++drawn[static_cast<size_t>(SourceIn(place, i))];
  return drawn;
}

int64_t Blend::num_windows() const {
  int64_t sum = 0;
  for (const BlendSource& source : sources_) sum += source.num_windows;
  return sum;
}

}  // namespace halflife::data
