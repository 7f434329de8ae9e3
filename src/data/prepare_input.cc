#include "data/prepare_input.h"

#include "core/error.h"

namespace halflife::data {

void PrepareInput::Check() const {
  HL_CHECK_AS(ExitCode::kUsage, validation_fraction >= 0 && validation_fraction < 1,
              "--validation-fraction ", validation_fraction,
              " is not in [0, 1); 0.05 is usual, 0 leaves the validation split empty");
  HL_CHECK_AS(ExitCode::kUsage, max_document_bytes > 0, "--max-document-bytes ", max_document_bytes,
              " is not positive; ", PrepareInput().max_document_bytes, " is usual");
}

}  // namespace halflife::data
