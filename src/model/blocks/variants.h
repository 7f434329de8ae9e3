// Internal header of the blocks: declares the functions that return their variants.
#pragma once

#include "model/blocks/block.h"

namespace halflife::model {

using BlockVariant = Variant<Block, BlockContext>;

#define HL_BLOCK(Make) BlockVariant Make();
#include "model/blocks/blocks.inc"
#undef HL_BLOCK

}  // namespace halflife::model
