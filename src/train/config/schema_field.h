// Inner header of what matches options with the schema.
#pragma once

#include <string>

namespace google::protobuf {
class Descriptor;
class FieldDescriptor;
}  // namespace google::protobuf

namespace halflife::train {

// Error kInternal for a name that the message does not have.
const google::protobuf::FieldDescriptor& FieldOf(const google::protobuf::Descriptor& message,
                                                 const std::string& name);

}  // namespace halflife::train
