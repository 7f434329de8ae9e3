// The fractions of a GPU's limits that training steps and kernels reached on an H100
// (bench/RESULTS.md, steps of 24 layers and 16,384 tokens in bf16). Plans multiply the limits of
// their device by them. The test measured_steps_test compares plans with the measured steps.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace halflife::train {

// Matrix products with parameters, relative to the dense peak.
inline constexpr double kProductShare = 0.73;
// Memory traffic of everything that is neither a matrix product nor mixing (norms, activations,
// loss, update, gaps between kernels), relative to the memory bandwidth. ComputePiece::bytes counts
// the traffic.
inline constexpr double kTrafficShare = 0.75;

// Returns the operations per second of a mixer's work between tokens (model::FlopCount::mixing),
// relative to the peak. Returns nullopt if neither a step with this mixer nor its kernel was
// measured. Decay attention depends on the shape of a head's state [K, V]: `state_elements` is K V.
// Between the measured shapes the logarithm is interpolated, and beyond them the nearest counts.
std::optional<double> MeasuredMixingShare(std::string_view mixer, int64_t state_elements);
// The share that a plan assumes for other mixers: that of decays per channel.
inline constexpr double kAssumedMixingShare = 0.03;

}  // namespace halflife::train
