#pragma once

#include <string>

#include "bench/json.hpp"
#include "loss/record.hpp"

namespace tutti::tool {

/// What was computed, and how often: `config` of the JSON.
Json loss_config(const LossRecord& record);

/// A run as loss_schema() describes it.
std::string loss_json(const LossRecord& record);

/// For people; in at most 80 columns. Nothing when nothing was computed.
std::string loss_table(const LossRecord& record);

/// What a reader has to know about numbers that differ, in one line.
std::string describe_wrong(const LossRow& row);

}  // namespace tutti::tool
