// halflife export: writes a checkpoint as a folder that transformers loads.
#include <iostream>

#include "cli/run.h"
#include "core/error.h"
#include "core/human.h"
#include "infer/model_loader.h"
#include "interop/export.h"

namespace halflife::cli {

ExitCode Run(const ExportOptions& options) {
  interop::ExportOptions exported = options.exported;
  exported.dtype = options.dtype == "bf16" ? ckpt::StoredDType::kBF16 : ckpt::StoredDType::kF32;
  const std::filesystem::path step_dir = ckpt::FindStep(options.run);
  const ckpt::StepReader step = ckpt::StepReader::Open(step_dir);
  const auto tokenizer = infer::LoadTokenizerOfStep(step_dir, options.tokenizer);
  const interop::ExportReport report =
      interop::ExportModel(step, tokenizer.get(), options.out, exported);
  std::cout << step_dir.string() << " -> " << options.out << ": " << report.class_name << ", "
            << HumanBytes(report.bytes)
            << (report.has_tokenizer ? "" : ", no tokenizer (name one with --tokenizer)") << "\n";
  return ExitCode::kFinished;
}

}  // namespace halflife::cli
