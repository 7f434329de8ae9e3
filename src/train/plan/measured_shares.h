// The fractions of a GPU's limits that training steps reached on an H100 (bench/RESULTS.md, steps
// of 24 layers and 16,384 tokens in bf16). Plans multiply the limits of their device by them. The
// test measured_steps_test compares plans with the measured steps.
#pragma once

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
// relative to the peak. Returns nullopt if no step with this mixer was measured.
std::optional<double> MeasuredMixingShare(std::string_view mixer);
// The share that a plan assumes for other mixers: that of decays per channel.
inline constexpr double kAssumedMixingShare = 0.03;

}  // namespace halflife::train
