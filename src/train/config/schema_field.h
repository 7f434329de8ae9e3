// Internal header of the code that matches options with the schema.
#pragma once

#include <string>

namespace google::protobuf {
class Descriptor;
class FieldDescriptor;
}  // namespace google::protobuf

namespace halflife::train {

// Error kInternal if the message has no field of that name.
const google::protobuf::FieldDescriptor& FieldOf(const google::protobuf::Descriptor& message,
                                                 const std::string& name);

}  // namespace halflife::train
