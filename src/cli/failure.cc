#include "cli/failure.h"

#include <c10/util/Exception.h>

#include <filesystem>
#include <new>

#include "core/error.h"
#include "core/files.h"
#include "dist/communicator.h"

namespace halflife::cli {
namespace {

constexpr char kOutOfMemory[] =
    ". Use a smaller model, batch or sequence (`halflife train --dry-run` prints the memory).";

// The CPU allocator's failure has no type of its own.
bool IsOutOfMemory(const c10::Error& error) {
  const std::string text = error.what_without_backtrace();
  return dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr ||
         text.find("DefaultCPUAllocator") != std::string::npos;
}

}  // namespace

Failure DescribeFailure(const std::exception_ptr& thrown) {
  try {
    std::rethrow_exception(thrown);
  } catch (const dist::CommError& error) {
    const bool echo = error.kind() == dist::CommFailure::Kind::kPeerLost ||
                      error.kind() == dist::CommFailure::Kind::kAborted;
    return {error.code(), error.what(), echo};
  } catch (const Error& error) {
    return {error.code(), error.what()};
  } catch (const std::filesystem::filesystem_error& error) {
    return {ExitCode::kEnvironment, Concat("the file system refuses: ", TextOf(error))};
  } catch (const std::bad_alloc&) {
    return {ExitCode::kEnvironment, Concat("out of memory", kOutOfMemory)};
  } catch (const c10::Error& error) {
    const std::string text = error.what_without_backtrace();
    if (!IsOutOfMemory(error))
      return {ExitCode::kInternal, Concat("internal fault: LibTorch: ", text)};
    return {ExitCode::kEnvironment, Concat("out of memory: ", text, kOutOfMemory)};
  } catch (const std::exception& error) {
    return {ExitCode::kInternal, Concat("internal fault: ", error.what())};
  }
}

}  // namespace halflife::cli
