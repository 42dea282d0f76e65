#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "bench/record.hpp"
#include "common/message.hpp"
#include "report/json.hpp"
#include "report/table.hpp"

namespace tutti::tool {

enum class Fruit : std::uint8_t { apple, pear };
template <>
inline constexpr Names<2> names_of<Fruit>{"apple", "pear"};

namespace {

using Json = nlohmann::ordered_json;

struct Stone {
  std::int64_t weight = 0;
};

void describe(Fields& fields, const Stone& stone) {
  fields("weight", stone.weight, {.at_least = 1});
}

struct Basket {
  Fruit fruit = Fruit::pear;
  double price = 0.1;
  std::optional<Stone> stone{};
  std::optional<std::int64_t> count{};
  std::optional<std::string> note{};
  std::vector<double> prices{};
  std::vector<Fruit> fruits{};
};

void describe(Fields& fields, const Basket& basket) {
  fields("fruit", basket.fruit, {.column = {"fruit", -8, std::string(name_of(basket.fruit))}});
  fields("price", basket.price, "in all", {.above = 0, .column = {"in\nall", 6, "0.10", "price"}});
  fields("stone", basket.stone);
  fields("count", basket.count, {.at_least = 1, .instead = "auto"});
  fields("note", basket.note, {.omitted = true});
  fields("prices", basket.prices, {.at_least = 0});
  fields("fruits", basket.fruits);
}

struct Market {
  std::string name = "a \"b\", c";
  std::vector<Basket> results{};
};

void describe(Fields& fields, const Market& market) {
  fields("name", market.name);
  fields("results", market.results);
}

Market market() {
  Market market;
  market.results.resize(2);
  market.results[1] = {Fruit::apple, 3, Stone{7}, 4, "ripe", {1.5, 2}, {Fruit::pear}};
  return market;
}

TEST(Report, JsonHasNullForWhatIsEmptyUnlessAWordStandsForItOrItIsLeftOut) {
  const Json json = Json::parse(to_json(Fields::object(market())));
  EXPECT_EQ(json.at("results").at(0).dump(),
            R"({"fruit":"pear","price":0.1,"stone":null,"count":"auto","prices":[],"fruits":[]})");
  EXPECT_EQ(json.at("results").at(1).dump(),
            R"({"fruit":"apple","price":3.0,"stone":{"weight":7},"count":4,"note":"ripe",)"
            R"("prices":[1.5,2.0],"fruits":["pear"]})");
}

TEST(Report, TheSchemaHasTheTypesBoundsAndNames) {
  const Json schema = Json::parse(json_schema("id", "title", Fields::object(Market())));
  EXPECT_EQ(schema.at("$id"), "id");
  EXPECT_EQ(schema.at("required"), Json({"name", "results"}));
  const Json& basket = schema.at("properties").at("results").at("items");
  EXPECT_EQ(basket.at("additionalProperties"), false);
  EXPECT_EQ(basket.at("required"), Json({"fruit", "price", "stone", "count", "prices", "fruits"}));
  const Json& fields = basket.at("properties");
  EXPECT_EQ(fields.at("fruit").dump(), R"({"enum":["apple","pear"]})");
  EXPECT_EQ(fields.at("price").dump(),
            R"({"type":"number","exclusiveMinimum":0,"description":"in all"})");
  EXPECT_EQ(fields.at("stone").at("type"), Json({"object", "null"}));
  EXPECT_EQ(fields.at("stone").at("properties").at("weight").dump(),
            R"({"type":"integer","minimum":1})");
  EXPECT_EQ(fields.at("count").dump(),
            R"({"oneOf":[{"const":"auto"},{"type":"integer","minimum":1}]})");
  EXPECT_EQ(fields.at("note").dump(), R"({"type":"string"})");
  EXPECT_EQ(fields.at("prices").dump(),
            R"({"type":"array","items":{"type":"number","minimum":0}})");
  EXPECT_EQ(fields.at("fruits").dump(), R"({"type":"array","items":{"enum":["apple","pear"]}})");
}

TEST(Report, RowsHaveTheSameColumnsWhateverIsEmpty) {
  constexpr std::array<std::string_view, 1> shared{"name"};
  const std::string csv = to_csv(Fields::object(market()), shared);
  EXPECT_TRUE(
      csv.starts_with("name,fruit,price,stone.weight,count,prices,fruits,note\n"
                      "\"a \"\"b\"\", c\",pear,0.1,,auto,,,\n"))
      << csv;
  const std::string lines = to_ndjson(Fields::object(market()), shared);
  EXPECT_EQ(Json::parse(lines.substr(0, lines.find('\n'))).at("stone.weight"), nullptr);
}

TEST(Report, ATableHasTheChosenColumnsInTheirOrder) {
  const TableRow row(Fields::object(Basket()), {"fruit", "price", "nothing"});
  EXPECT_EQ(row.heading(), "            in\nfruit      all\n");
  EXPECT_EQ(row.line(), "pear      0.10\n");
  EXPECT_EQ(row.markdown_heading(), "| fruit | price |\n| --- | ---: |\n");
  EXPECT_EQ(row.markdown_line(), "| pear | 0.10 |\n");
}

TEST(Report, AColumnMayHaveADotInItsName) {
  Row row;
  row.percentiles_us[99.9] = 3;
  const TableRow table(Fields::object(row), {"time_us.p99", "time_us.p99.9"});
  EXPECT_EQ(table.markdown_line(), "| 0.000 | 3.000 |\n");
}

TEST(Report, ATitleNamesWhatIsNotUsual) {
  Key key;
  key.coll = "all_gather";
  key.dtype = DType::f32;
  key.place = PlaceMode::out;
  key.counts = "even";
  EXPECT_EQ(title(key), "all_gather  f32  out-of-place");
  key.counts = "zipf:1.5";
  EXPECT_EQ(title(key), "all_gather  f32  out-of-place  counts zipf:1.5");
}

struct Letter {
  std::string text{};
  std::optional<double> number{};
  std::vector<std::int64_t> list{};
  Fruit fruit = Fruit::apple;
};

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Letter, text, number, list, fruit)

TEST(Messages, AreReadAsTheyWereWritten) {
  const Letter letter{"3:a\n,\xff", 0.1 + 0.2, {-1, 2}, Fruit::pear};
  const auto read = from_message<Letter>(to_message(letter));
  EXPECT_EQ(read.text, letter.text);
  EXPECT_EQ(read.number, letter.number);
  EXPECT_EQ(read.list, letter.list);
  EXPECT_EQ(read.fruit, letter.fruit);
  const double infinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(from_message<double>(to_message(infinity)), infinity);
  EXPECT_FALSE(from_message<Letter>(to_message(Letter{})).number);
  EXPECT_THROW((void)from_message<Letter>("9:short"), nlohmann::json::exception);
  EXPECT_THROW((void)from_message<Letter>(""), nlohmann::json::exception);
}

}  // namespace
}  // namespace tutti::tool
