// The first mixer of docs/adding_a_mixer.md, written with LibTorch operations.
#include "examples/docs/adding_a_mixer.md"
