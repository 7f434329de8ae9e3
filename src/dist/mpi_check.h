// HL_MPI(MPI_Isend(...), "to rank ", peer): throws CommError kLibrary with MPI's error text. For
// .cc files, which include <mpi.h> first. Communicators must use MPI_ERRORS_RETURN.
#pragma once

#include <string>

#include "core/concat.h"
#include "dist/communicator.h"

namespace halflife::dist {

inline std::string MpiErrorText(int code) {
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(code, text, &length);
  return {text, static_cast<size_t>(length)};
}

}  // namespace halflife::dist

#define HL_MPI(call, ...)                                                                      \
  do {                                                                                         \
    const int hl_mpi_code = (call);                                                            \
    if (hl_mpi_code != MPI_SUCCESS) [[unlikely]] {                                             \
      throw ::halflife::dist::CommError(                                                       \
          {::halflife::dist::CommFailure::Kind::kLibrary,                                      \
           ::halflife::Concat(#call, ": ",                                                     \
                              ::halflife::dist::MpiErrorText(hl_mpi_code) __VA_OPT__(, ": ", ) \
                                  __VA_ARGS__)});                                              \
    }                                                                                          \
  } while (false)
