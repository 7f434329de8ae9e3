// What `halflife mixers` prints: each result once as JSON, and once as text made from it.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace halflife::cli {

// A list of {kind, usual, variants: [{name, summary}]}, mixers first.
nlohmann::ordered_json DescribeParts();
std::string PartsText(const nlohmann::ordered_json& parts);

// `name`: "gla", or "channel_mixer.glu". Keys:
// - kind, name, summary, equation (of mixers);
// - cost (of mixers and channel mixers): of one layer of a model of cost.model_dim, with the
//   defaults: parameters, matmul_flops and, of mixers, mixing_flops of a token forward at
//   cost.seq_len;
// - state (of mixers): a list of {name, shape, dtype, grows, bytes} of one row; where it grows, the
//   shape has "tokens" and the bytes are a token's; dtype "compute" is counted as fp32;
// - options: a list of {name, type, default, meaning, choices}.
// Error kUsage for a name that is none, with the nearest ones.
nlohmann::ordered_json DescribePart(const std::string& name);
std::string PartText(const nlohmann::ordered_json& part);

}  // namespace halflife::cli
