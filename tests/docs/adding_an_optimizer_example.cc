// The optimizer of docs/adding_an_optimizer.md.
#include "examples/docs/adding_an_optimizer.md"
