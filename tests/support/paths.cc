#include "support/paths.h"

namespace halflife::test {

const char* const kSourceDir = HALFLIFE_SOURCE_DIR;
const char* const kProgram = HALFLIFE_BINARY;

}  // namespace halflife::test
