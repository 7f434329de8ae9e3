// The examples of the headers of src/serve. The parameters of a function are the variables that its
// example uses.
#include "serve/answer.h"
#include "serve/api_request.h"
#include "serve/engine.h"
#include "serve/http_server.h"
#include "serve/server.h"

namespace halflife::serve {

void AnswerExample(const ApiCall& call, const data::Tokenizer& tokenizer, std::ostream& stream,
                   const std::function<TextEvent()>& NextEvent) {
#include "examples/serve/answer.h"
}

void ApiRequestExample(const std::string& body, const ApiLimits& limits,
                       const data::Tokenizer& tokenizer) {
#include "examples/serve/api_request.h"
}

void EngineExample(const model::LanguageModel& model, std::vector<EngineText> texts,
                   Mailbox::Clock::time_point deadline) {
#include "examples/serve/engine.h"
}

void HttpServerExample() {
#include "examples/serve/http_server.h"
}

void ServerExample(const model::LanguageModel& model, const data::Tokenizer& tokenizer,
                   const std::function<bool()>& stop_requested) {
#include "examples/serve/server.h"
}

}  // namespace halflife::serve
