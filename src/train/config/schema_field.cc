#include "train/config/schema_field.h"

#include <google/protobuf/descriptor.h>

#include "core/error.h"

namespace halflife::train {

const google::protobuf::FieldDescriptor& FieldOf(const google::protobuf::Descriptor& message,
                                                 const std::string& name) {
  const google::protobuf::FieldDescriptor* field = message.FindFieldByName(name);
  HL_CHECK(field != nullptr, "the schema's ", message.name(), " has no field ", name);
  return *field;
}

}  // namespace halflife::train
