#pragma once
// One list of messages checked and cleaned: the part of conversation.h that deals with turns.
//
// Known roles are system, developer, user, assistant, tool, function and ipython, and whatever role
// the chat template names itself; another one is refused, because a reply under a role that nobody
// knows would silently never be trained.

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "data/conversation.h"

namespace graft {

// Appends a list of {"role", "content", ...} (key: the column it came from) to row.messages and
// row.excluded. Keys of a message whose value is null are dropped; only the content of a turn
// that calls tools stays null where it is. "weight" and "train" are taken out.
void append_messages(nlohmann::ordered_json messages, std::string_view key,
                     std::string_view template_source, const std::string& where, NormalRow& row);

// Appends a list of {"from", "value"}; a message that has "role" instead is taken as above.
void append_sharegpt(nlohmann::ordered_json messages, std::string_view key,
                     std::string_view template_source, const std::string& where, NormalRow& row);

// Appends one turn made of a role and a text.
void append_turn(std::string_view role, std::string content, NormalRow& row);

// Drops keys whose value is null, at any depth.
void drop_nulls(nlohmann::ordered_json& value);

// Notes on empty replies and on turns out of order.
void note_turns(NormalRow& row);

}  // namespace graft
