// The wgmma kernels for the states of chunks and of segments, and the factors that it reads.
#include "kernels/decay_attention/cuda/warpgroup_states.cuh"

namespace halflife::kernels::decay {
namespace {

unsigned NumStateBlocks(const DecayAttentionArgs& args, const SegmentShape& shape) {
  return NumBlocks(args, StateBlocks(args, shape));
}
void LaunchWarpgroupStates(const WarpgroupStatesParams& params, unsigned blocks, const char* name,
                           cudaStream_t stream) {
  const bool forward = params.num_forward > 0, reverse = blocks > params.num_forward;
  const StateMaps forward_maps = forward ? MapsOfStates(params, /*reverse=*/false) : StateMaps{};
  const StateMaps reverse_maps = reverse ? MapsOfStates(params, /*reverse=*/true) : StateMaps{};
  const auto launch = [&](auto config, auto kernel) {
    Launch({blocks, config.kThreads, config.kSmemBytes, name}, stream, kernel, params, forward_maps,
           reverse_maps);
  };
  using Tokens = WarpgroupStatesConfig<false>;
  using Channels = WarpgroupStatesConfig<true>;
  if (IsPerChannel(params.grads.forward.decay_kind)) {
    launch(Channels{}, WarpgroupStatesKernel<Channels>);
  } else {
    launch(Tokens{}, WarpgroupStatesKernel<Tokens>);
  }
}
// Returns the operands of chunks, with per-channel decays.
ChannelChunks OperandsOf(const DecayAttentionArgs& args, const SegmentShape& shape,
                         const void* operands) {
  return IsPerChannel(args.decay_kind) ? ChannelChunksOf(args, shape, operands) : ChannelChunks{};
}

}  // namespace

void LaunchChunkFactors(const ChunkFactorsParams& params, cudaStream_t stream) {
  const int64_t count =
      MaxStatesInBatchTile(params.args, params.shape.num_sequences, /*num_parts=*/1);
  if (count == 0) return;
  LaunchShape shape = ShapeForRows(count, "decay attention factors of chunks");
  shape.smem_bytes = kRowWarps * kDecayTablesBytes;
  Launch(shape, stream, ChunkFactorsKernel, params);
}

void LaunchChunkStates(const ReverseScanParams& params, cudaStream_t stream) {
  const unsigned one_way = NumStateBlocks(params.grads.forward, params.shape);
  WarpgroupStatesParams own = {};
  own.grads = params.grads;
  own.shape = params.shape;
  own.checkpoint_every = params.checkpoint_every;
  own.factors = params.factors;
  own.channels = OperandsOf(params.grads.forward, params.shape, params.operands);
  own.num_forward = one_way;
  own.states = params.states;
  own.adjoints = params.adjoints;
  own.segment_states = params.segment_states;
  LaunchWarpgroupStates(own, 2 * one_way, "decay attention states of chunks", stream);
}

void LaunchSegmentStates(const StateScanParams& params, cudaStream_t stream) {
  const unsigned blocks = NumStateBlocks(params.args, params.shape);
  WarpgroupStatesParams own = {};
  own.grads.forward = params.args;
  own.grads.dout = params.dout;
  own.shape = params.shape;
  own.checkpoint_every = params.checkpoint_every;
  own.factors = params.factors;
  own.channels = OperandsOf(params.args, params.shape, params.operands);
  own.num_forward = params.reverse ? 0 : blocks;
  own.ends = params.states;
  own.log_transition = params.log_transition;
  own.transition_unit = params.transition_unit;
  LaunchWarpgroupStates(own, blocks, "decay attention states of segments by warpgroups", stream);
}

}  // namespace halflife::kernels::decay
