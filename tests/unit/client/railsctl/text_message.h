// Messages of a replay, written as protobuf's text.
#ifndef RAILS_TESTS_UNIT_CLIENT_RAILSCTL_TEXT_MESSAGE_H_
#define RAILS_TESTS_UNIT_CLIENT_RAILSCTL_TEXT_MESSAGE_H_

#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <string>

namespace rails::ctl {

template <typename Message>
Message FromText(const std::string& text) {
  Message message;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &message)) << text;
  return message;
}

}  // namespace rails::ctl

#endif  // RAILS_TESTS_UNIT_CLIENT_RAILSCTL_TEXT_MESSAGE_H_
