#include <tutti/cluster.hpp>

#include <unistd.h>

#include <set>
#include <string>

#include <gtest/gtest.h>

#include "support/errors.hpp"
#include "support/scoped_variables.hpp"

namespace tutti {
namespace {

using test::expect_error;
using test::ScopedVariables;

/// Clears the launchers' variables of this process.
class VariablesEnvironmentTest : public testing::Test {
 protected:
  VariablesEnvironmentTest() {
    for (const char* name : {"TUTTI_RANK",
                             "TUTTI_SIZE",
                             "TUTTI_LOCAL_RANK",
                             "TUTTI_LOCAL_SIZE",
                             "TUTTI_NODE",
                             "TUTTI_STORE",
                             "TUTTI_STORE_HOSTED",
                             "TUTTI_STORE_PORT",
                             "RANK",
                             "WORLD_SIZE",
                             "LOCAL_RANK",
                             "LOCAL_WORLD_SIZE",
                             "GROUP_RANK",
                             "MASTER_ADDR",
                             "MASTER_PORT",
                             "TORCHELASTIC_RUN_ID",
                             "TORCHELASTIC_RESTART_COUNT",
                             "OMPI_COMM_WORLD_RANK",
                             "OMPI_COMM_WORLD_SIZE",
                             "OMPI_COMM_WORLD_LOCAL_RANK",
                             "OMPI_COMM_WORLD_LOCAL_SIZE",
                             "OMPI_COMM_WORLD_NODE_RANK",
                             "PMI_RANK",
                             "PMI_SIZE",
                             "PMI_FD",
                             "PMI_JOBID",
                             "MPI_LOCALRANKID",
                             "MPI_LOCALNRANKS",
                             "PMIX_NAMESPACE",
                             "PALS_RANKID",
                             "PALS_LOCAL_RANKID",
                             "SLURM_PROCID",
                             "SLURM_NTASKS",
                             "SLURM_LOCALID",
                             "SLURM_NODEID",
                             "SLURM_NNODES",
                             "SLURM_STEP_NUM_NODES",
                             "TUTTI_TOKEN_FILE",
                             "TUTTI_STORE_OPEN",
                             "TUTTI_JOB",
                             "SLURM_JOB_ID",
                             "SLURM_STEP_ID",
                             "SLURM_RESTART_COUNT",
                             "SLURM_JOB_NODELIST",
                             "SLURM_STEP_NODELIST"})
      nothing.set(name, nullptr);
  }

  ScopedVariables nothing{};
  const VariablesEnvironment environment{};
};

TEST_F(VariablesEnvironmentTest, TheStoreAloneIsNoLauncher) {
  const ScopedVariables set{{"TUTTI_STORE", "file:///tmp"}, {"TUTTI_LOCAL_RANK", "0"}};
  EXPECT_FALSE(environment.detect().has_value());
}

TEST_F(VariablesEnvironmentTest, ReadsItsOwnVariables) {
  const ScopedVariables set{{"TUTTI_RANK", "3"},       {"TUTTI_SIZE", "8"},
                            {"TUTTI_LOCAL_RANK", "1"}, {"TUTTI_LOCAL_SIZE", "2"},
                            {"TUTTI_NODE", "4"},       {"TUTTI_STORE", "file:///somewhere"}};
  const auto info = environment.detect();
  ASSERT_TRUE(info.has_value());
  EXPECT_EQ(info->launcher, "tutti");
  EXPECT_EQ(info->rank, 3);
  EXPECT_EQ(info->size, 8);
  EXPECT_EQ(info->local_rank, 1);
  EXPECT_EQ(info->local_size, 2);
  EXPECT_EQ(info->node, 4);
  EXPECT_EQ(info->store, "file:///somewhere");
}

TEST_F(VariablesEnvironmentTest, ReadsThoseOfTorchrun) {
  const ScopedVariables set{{"RANK", "0"},       {"WORLD_SIZE", "2"},
                            {"LOCAL_RANK", "0"}, {"LOCAL_WORLD_SIZE", "2"},
                            {"GROUP_RANK", "0"}, {"TUTTI_STORE", "file:///somewhere"}};
  const auto info = environment.detect();
  ASSERT_TRUE(info.has_value());
  EXPECT_EQ(info->launcher, "torchrun");
  EXPECT_EQ(info->rank, 0);
  EXPECT_EQ(info->size, 2);
  EXPECT_EQ(info->local_rank, 0);
  EXPECT_EQ(info->local_size, 2);
  EXPECT_EQ(info->node, 0);
  EXPECT_EQ(info->store, "file:///somewhere");
}

TEST_F(VariablesEnvironmentTest, WhatIsNotToldIsUnknown) {
  const ScopedVariables set{{"TUTTI_RANK", "0"}, {"TUTTI_SIZE", "1"}};
  const auto info = environment.detect();
  ASSERT_TRUE(info.has_value());
  EXPECT_EQ(info->local_rank, -1);
  EXPECT_EQ(info->local_size, -1);
  EXPECT_EQ(info->node, -1);
  EXPECT_EQ(info->store, "");
}

TEST_F(VariablesEnvironmentTest, ItsOwnVariablesWinAndAreNeverMixedWithTorchruns) {
  const ScopedVariables set{{"TUTTI_RANK", "1"}, {"TUTTI_SIZE", "2"}, {"RANK", "5"},
                            {"WORLD_SIZE", "9"}, {"LOCAL_RANK", "5"}, {"GROUP_RANK", "3"}};
  const auto info = environment.detect();
  ASSERT_TRUE(info.has_value());
  EXPECT_EQ(info->launcher, "tutti");
  EXPECT_EQ(info->rank, 1);
  EXPECT_EQ(info->size, 2);
  EXPECT_EQ(info->local_rank, -1) << "torchrun's says nothing about another launcher";
  EXPECT_EQ(info->node, -1);
}

TEST_F(VariablesEnvironmentTest, HalfAPairIsRefusedWithBothNames) {
  {
    const ScopedVariables set{{"TUTTI_RANK", "1"}};
    expect_error(Errc::invalid_argument, {"TUTTI_RANK", "TUTTI_SIZE"},
                 [&] { (void)environment.detect(); });
  }
  {
    // Not completed with the other launcher's variables.
    const ScopedVariables set{{"TUTTI_SIZE", "4"}, {"RANK", "1"}, {"WORLD_SIZE", "4"}};
    expect_error(Errc::invalid_argument, {"TUTTI_SIZE", "TUTTI_RANK"},
                 [&] { (void)environment.detect(); });
  }
  {
    const ScopedVariables set{{"RANK", "1"}};
    expect_error(Errc::invalid_argument, {"RANK", "WORLD_SIZE"},
                 [&] { (void)environment.detect(); });
  }
}

TEST_F(VariablesEnvironmentTest, AnEmptyVariableIsNotSet) {
  const ScopedVariables set{
      {"TUTTI_RANK", ""}, {"TUTTI_SIZE", ""}, {"RANK", "1"}, {"WORLD_SIZE", "2"}};
  EXPECT_EQ(environment.detect()->launcher, "torchrun");
}

TEST_F(VariablesEnvironmentTest, WhatIsNoNumberIsRefusedByNameAndText) {
  for (const char* text : {"one", "-1", "1.5", " 1", "1 ", "0x1", "+1", "99999999999999999999"}) {
    const ScopedVariables set{{"TUTTI_RANK", text}, {"TUTTI_SIZE", "4"}};
    expect_error(Errc::invalid_argument, {"TUTTI_RANK", std::string("'") + text + "'"},
                 [&] { (void)environment.detect(); });
  }
  const ScopedVariables set{{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"LOCAL_RANK", "first"}};
  expect_error(Errc::invalid_argument, {"LOCAL_RANK", "first"},
               [&] { (void)environment.detect(); });
}

TEST_F(VariablesEnvironmentTest, ARankOutsideOfItsSizeIsRefusedWithBothNumbers) {
  for (const auto& [rank, size] : {std::pair{"4", "4"}, {"7", "2"}, {"0", "0"}}) {
    const ScopedVariables set{{"TUTTI_RANK", rank}, {"TUTTI_SIZE", size}};
    expect_error(Errc::invalid_argument,
                 {std::string("TUTTI_RANK is ") + rank, std::string("TUTTI_SIZE is ") + size},
                 [&] { (void)environment.detect(); });
  }
  const ScopedVariables set{{"RANK", "2"}, {"WORLD_SIZE", "2"}};
  expect_error(Errc::invalid_argument, {"RANK is 2", "WORLD_SIZE is 2"},
               [&] { (void)environment.detect(); });
}

TEST_F(VariablesEnvironmentTest, ALocalRankOutsideOfItsSizeIsRefusedWithBothNumbers) {
  const ScopedVariables set{{"TUTTI_RANK", "1"},
                            {"TUTTI_SIZE", "8"},
                            {"TUTTI_LOCAL_RANK", "5"},
                            {"TUTTI_LOCAL_SIZE", "2"}};
  expect_error(Errc::invalid_argument, {"TUTTI_LOCAL_RANK is 5", "TUTTI_LOCAL_SIZE is 2"},
               [&] { (void)environment.detect(); });
}

TEST_F(VariablesEnvironmentTest, AHostWithMoreRanksThanThereAreIsRefusedWithBothNumbers) {
  const ScopedVariables set{{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"LOCAL_WORLD_SIZE", "3"}};
  expect_error(Errc::invalid_argument, {"LOCAL_WORLD_SIZE is 3", "WORLD_SIZE is 2"},
               [&] { (void)environment.detect(); });
}

TEST_F(VariablesEnvironmentTest, ReadsThoseOfOpenMpi) {
  const ScopedVariables set{{"OMPI_COMM_WORLD_RANK", "5"},
                            {"OMPI_COMM_WORLD_SIZE", "8"},
                            {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                            {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
                            {"OMPI_COMM_WORLD_NODE_RANK", "1"}};
  const auto info = environment.detect();
  ASSERT_TRUE(info.has_value());
  EXPECT_EQ(info->launcher, "Open MPI");
  EXPECT_EQ(info->rank, 5);
  EXPECT_EQ(info->size, 8);
  EXPECT_EQ(info->local_rank, 1);
  EXPECT_EQ(info->local_size, 4);
  EXPECT_EQ(info->node, -1) << "NODE_RANK counts the processes of a node, not the nodes";
  EXPECT_EQ(info->store, "") << "it gives no address";
}

TEST_F(VariablesEnvironmentTest, OnOneHostTheLaunchersProcessGivesTheStore) {
  const ScopedVariables set{{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "2"}};
  const ScopedVariables local{{"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}};
  const auto info = environment.detect();
  ASSERT_TRUE(info.has_value());
  EXPECT_TRUE(info->store.starts_with("tcp://127.0.0.1:2")) << info->store;
  EXPECT_TRUE(info->run.starts_with(std::to_string(::getppid()) + '-')) << info->run;
  EXPECT_EQ(environment.detect()->store, info->store);
  const ScopedVariables port{{"TUTTI_STORE_PORT", "1234"}};
  EXPECT_EQ(environment.detect()->store, "tcp://127.0.0.1:1234");
}

TEST_F(VariablesEnvironmentTest, APortThatIsDerivedIsOneOfTheRange) {
  const ScopedVariables ports{{"TUTTI_PORTS", "30100-30109"}};
  const ScopedVariables slurm{{"SLURM_PROCID", "1"},
                              {"SLURM_NTASKS", "2"},
                              {"SLURM_JOB_ID", "1234567"},
                              {"SLURM_STEP_ID", "2"},
                              {"SLURM_JOB_NODELIST", "cn7"}};
  EXPECT_TRUE(environment.detect()->store.starts_with("tcp://cn7:3010"));
  const ScopedVariables mpi{{"OMPI_COMM_WORLD_RANK", "1"},
                            {"OMPI_COMM_WORLD_SIZE", "2"},
                            {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}};
  EXPECT_TRUE(environment.detect()->store.starts_with("tcp://127.0.0.1:3010"));
}

TEST_F(VariablesEnvironmentTest, ReadsThoseOfPmi) {
  const ScopedVariables set{
      {"PMI_RANK", "2"}, {"PMI_SIZE", "4"}, {"MPI_LOCALRANKID", "0"}, {"MPI_LOCALNRANKS", "2"}};
  const auto info = environment.detect();
  ASSERT_TRUE(info.has_value());
  EXPECT_EQ(info->launcher, "PMI");
  EXPECT_EQ(info->rank, 2);
  EXPECT_EQ(info->size, 4);
  EXPECT_EQ(info->local_rank, 0);
  EXPECT_EQ(info->local_size, 2);
  EXPECT_EQ(info->store, "");
}

TEST_F(VariablesEnvironmentTest, PalsGivesTheRankAndPmiItsSize) {
  const ScopedVariables set{{"PALS_RANKID", "3"}, {"PALS_LOCAL_RANKID", "1"}, {"PMI_SIZE", "4"}};
  const auto info = environment.detect();
  ASSERT_TRUE(info.has_value());
  EXPECT_EQ(info->launcher, "PALS");
  EXPECT_EQ(info->rank, 3);
  EXPECT_EQ(info->size, 4);
  EXPECT_EQ(info->local_rank, 1);
  const ScopedVariables alone{{"PMI_SIZE", nullptr}};
  expect_error(Errc::invalid_argument, {"PALS_RANKID", "PMI_SIZE"},
               [&] { (void)environment.detect(); });
}

TEST_F(VariablesEnvironmentTest, PmiWithARankOfItsOwnGoesBeforePals) {
  const ScopedVariables set{{"PALS_RANKID", "3"}, {"PMI_RANK", "1"}, {"PMI_SIZE", "4"}};
  EXPECT_EQ(environment.detect()->launcher, "PMI");
  EXPECT_EQ(environment.detect()->rank, 1);
}

TEST_F(VariablesEnvironmentTest, ReadsThoseOfSlurm) {
  const ScopedVariables set{{"SLURM_PROCID", "6"},
                            {"SLURM_NTASKS", "8"},
                            {"SLURM_LOCALID", "2"},
                            {"SLURM_NODEID", "1"},
                            {"SLURM_JOB_ID", "1234567"},
                            {"SLURM_STEP_ID", "2"},
                            {"SLURM_JOB_NODELIST", "cn[07,09-11]"}};
  const auto info = environment.detect();
  ASSERT_TRUE(info.has_value());
  EXPECT_EQ(info->launcher, "Slurm");
  EXPECT_EQ(info->rank, 6);
  EXPECT_EQ(info->size, 8);
  EXPECT_EQ(info->local_rank, 2);
  EXPECT_EQ(info->node, 1);
  EXPECT_TRUE(info->store.starts_with("tcp://cn07:2")) << info->store;
  EXPECT_EQ(info->store.size(), std::string("tcp://cn07:20000").size());
  EXPECT_TRUE(info->hosts_store);
  EXPECT_EQ(info->run, "1234567/2/");
}

TEST_F(VariablesEnvironmentTest, ReadsWhatAnAuthenticatedStoreCompares) {
  const ScopedVariables slurm{{"SLURM_PROCID", "0"},
                              {"SLURM_NTASKS", "2"},
                              {"SLURM_JOB_ID", "31"},
                              {"SLURM_STEP_ID", "4"},
                              {"SLURM_RESTART_COUNT", "2"}};
  EXPECT_EQ(environment.detect()->job, "31.4");
  EXPECT_EQ(environment.detect()->generation, 2U);
  EXPECT_EQ(environment.detect()->token_file, "");
  EXPECT_FALSE(environment.detect()->open_store);
  const ScopedVariables set{
      {"TUTTI_TOKEN_FILE", "/secret"}, {"TUTTI_STORE_OPEN", "1"}, {"TUTTI_JOB", "mine"}};
  EXPECT_EQ(environment.detect()->job, "mine");
  EXPECT_EQ(environment.detect()->token_file, "/secret");
  EXPECT_TRUE(environment.detect()->open_store);
  const ScopedVariables unclear{{"TUTTI_STORE_OPEN", "yes"}};
  expect_error(Errc::invalid_argument, {"TUTTI_STORE_OPEN", "yes"},
               [&] { (void)environment.detect(); });
}

TEST_F(VariablesEnvironmentTest, SlurmSaysWhetherAllRanksAreOnOneHost) {
  const ScopedVariables set{{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "2"}, {"SLURM_NNODES", "1"}};
  EXPECT_EQ(environment.detect()->local_size, 2);
  const ScopedVariables step{{"SLURM_STEP_NUM_NODES", "2"}};
  EXPECT_EQ(environment.detect()->local_size, -1);
}

TEST_F(VariablesEnvironmentTest, TheStoreOfAStepIsOnTheFirstHostOfTheStep) {
  const ScopedVariables set{{"SLURM_PROCID", "0"},
                            {"SLURM_NTASKS", "2"},
                            {"SLURM_JOB_ID", "3"},
                            {"SLURM_JOB_NODELIST", "a[1-4]"},
                            {"SLURM_STEP_NODELIST", "a[3-4]"}};
  EXPECT_TRUE(environment.detect()->store.starts_with("tcp://a3:2")) << environment.detect()->store;
}

TEST_F(VariablesEnvironmentTest, StepsAndJobsOfSlurmHavePortsOfTheirOwn) {
  const auto store_of = [&](const char* job, const char* step) {
    const ScopedVariables set{{"SLURM_PROCID", "0"},
                              {"SLURM_NTASKS", "2"},
                              {"SLURM_JOB_ID", job},
                              {"SLURM_STEP_ID", step},
                              {"SLURM_JOB_NODELIST", "a"}};
    return environment.detect()->store;
  };
  EXPECT_EQ((std::set{store_of("3", "0"), store_of("3", "1"), store_of("10003", "0")}).size(), 3);
  const ScopedVariables range{{"TUTTI_PORTS", "29000-29127"}};  // 32 are for jobs.
  for (const auto* job : {"123456", "1234567"}) {
    std::set<std::string> stores;
    for (const auto* step : {"0", "1", "2", "3", "4", "5", "6", "7"})
      stores.insert(store_of(job, step));
    EXPECT_GE(stores.size(), 6) << job;
  }
}

TEST_F(VariablesEnvironmentTest, PmiOfAnotherStepOfSlurmIsRefused) {
  const ScopedVariables set{{"PMI_RANK", "0"},     {"PMI_SIZE", "1"},     {"PMI_FD", "99"},
                            {"PMI_JOBID", "7.0"},  {"SLURM_PROCID", "2"}, {"SLURM_NTASKS", "3"},
                            {"SLURM_JOB_ID", "7"}, {"SLURM_STEP_ID", "1"}};
  expect_error(Errc::invalid_argument, {"PMI_RANK is 0", "step 7.0", "this is step 7.1"},
               [&] { (void)environment.detect(); });
  const ScopedVariables same{{"PMI_JOBID", "7.1"}};
  EXPECT_EQ(environment.detect()->launcher, "PMI");
}

TEST_F(VariablesEnvironmentTest, SlurmsPmixReplacesTheAddressIfItIsOfTheStep) {
  const ScopedVariables set{{"SLURM_PROCID", "0"},       {"SLURM_NTASKS", "2"},
                            {"SLURM_JOB_ID", "3"},       {"SLURM_STEP_ID", "1"},
                            {"SLURM_JOB_NODELIST", "a"}, {"PMIX_NAMESPACE", "slurm.pmix.3.1"}};
  EXPECT_EQ(environment.detect()->store, "");
  {
    const ScopedVariables token{{"TUTTI_TOKEN_FILE", "/file"}};
    EXPECT_NE(environment.detect()->store, "") << "libpmix is not needed";
  }
  const ScopedVariables one_host{{"SLURM_NNODES", "1"}};
  EXPECT_NE(environment.detect()->store, "");
  const ScopedVariables outer{{"SLURM_NNODES", "2"}, {"PMIX_NAMESPACE", "slurm.pmix.3.0"}};
  EXPECT_NE(environment.detect()->store, "") << "inherited from another step";
}

TEST_F(VariablesEnvironmentTest, TheFirstHostOfSlurmsListsIsFound) {
  for (const auto& [list, host] : {std::pair{"node1", "node1"},
                                   {"node1,node2", "node1"},
                                   {"a[1-3,7],b", "a1"},
                                   {"b,a[1-3]", "b"},
                                   {"n[007-012]", "n007"},
                                   {"n[3]", "n3"},
                                   {"r[2-4]c[05,7]x,z", "r2c05x"},
                                   {"gpu-[2,4].cluster", "gpu-2.cluster"}}) {
    const ScopedVariables set{{"SLURM_PROCID", "0"},
                              {"SLURM_NTASKS", "2"},
                              {"SLURM_JOB_ID", "0"},
                              {"SLURM_JOB_NODELIST", list}};
    const auto store = environment.detect()->store;
    EXPECT_EQ(store.substr(0, store.rfind(':')), std::string("tcp://") + host) << list;
  }
  for (const char* list : {",a", "a[", "a[]", "a[,2]"}) {
    const ScopedVariables set{{"SLURM_PROCID", "0"},
                              {"SLURM_NTASKS", "2"},
                              {"SLURM_JOB_ID", "0"},
                              {"SLURM_JOB_NODELIST", list}};
    expect_error(Errc::invalid_argument, {"list of nodes"}, [&] { (void)environment.detect(); });
  }
}

TEST_F(VariablesEnvironmentTest, SlurmWithoutAListOrAJobTellsNoStore) {
  const ScopedVariables set{{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "2"}};
  EXPECT_EQ(environment.detect()->store, "");
  const ScopedVariables list{{"SLURM_JOB_NODELIST", "a"}};
  EXPECT_EQ(environment.detect()->store, "");
}

TEST_F(VariablesEnvironmentTest, TheStoreListensBesideMasterPortWhichIsTorchsOwn) {
  const ScopedVariables set{{"RANK", "0"},
                            {"WORLD_SIZE", "2"},
                            {"MASTER_ADDR", "node7"},
                            {"MASTER_PORT", "29400"},
                            {"TORCHELASTIC_RUN_ID", "job"},
                            {"TORCHELASTIC_RESTART_COUNT", "2"}};
  auto info = environment.detect();
  EXPECT_EQ(info->store, "tcp://node7:29401");
  EXPECT_TRUE(info->hosts_store);
  EXPECT_EQ(info->run, "job/2/") << "a store may outlive a restart";
  const ScopedVariables port{{"TUTTI_STORE_PORT", "4000"}};
  EXPECT_EQ(environment.detect()->store, "tcp://node7:4000");
}

TEST_F(VariablesEnvironmentTest, MasterAddrServesEveryLauncher) {
  const ScopedVariables address{{"MASTER_ADDR", "10.0.0.7"}, {"MASTER_PORT", "5000"}};
  for (const auto& [rank, size] : {std::pair{"TUTTI_RANK", "TUTTI_SIZE"},
                                   {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
                                   {"PMI_RANK", "PMI_SIZE"},
                                   {"PALS_RANKID", "PMI_SIZE"},
                                   {"SLURM_PROCID", "SLURM_NTASKS"}}) {
    const ScopedVariables set{{rank, "0"}, {size, "2"}};
    EXPECT_EQ(environment.detect()->store, "tcp://10.0.0.7:5001") << rank;
  }
}

TEST_F(VariablesEnvironmentTest, WithoutAPortTheStoreIsBesideTorchsUsualOne) {
  const ScopedVariables set{
      {"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "2"}, {"MASTER_ADDR", "fd00::1"}};
  EXPECT_EQ(environment.detect()->store, "tcp://[fd00::1]:29501");
}

TEST_F(VariablesEnvironmentTest, WhatIsNoPortIsRefusedByName) {
  const ScopedVariables set{{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "node7"}};
  for (const char* text : {"0", "65536", "http"}) {
    const ScopedVariables port{{"MASTER_PORT", text}};
    expect_error(Errc::invalid_argument, {"MASTER_PORT", text},
                 [&] { (void)environment.detect(); });
  }
  {
    const ScopedVariables port{{"MASTER_PORT", "65535"}};
    expect_error(Errc::invalid_argument, {"MASTER_PORT + 1", "65536", "TUTTI_STORE_PORT"},
                 [&] { (void)environment.detect(); });
  }
  const ScopedVariables port{{"TUTTI_STORE_PORT", "70000"}};
  expect_error(Errc::invalid_argument, {"TUTTI_STORE_PORT", "70000"},
               [&] { (void)environment.detect(); });
}

TEST_F(VariablesEnvironmentTest, TuttiStoreWinsAndSaysWhichRankHostsIt) {
  const ScopedVariables set{{"PMI_RANK", "0"},
                            {"PMI_SIZE", "2"},
                            {"MASTER_ADDR", "node7"},
                            {"TUTTI_STORE", "tcp://node9:77"}};
  EXPECT_EQ(environment.detect()->store, "tcp://node9:77");
  EXPECT_TRUE(environment.detect()->hosts_store);
  const ScopedVariables hosted{{"TUTTI_STORE_HOSTED", "1"}};
  EXPECT_FALSE(environment.detect()->hosts_store);
}

// Slurm starts torchrun's agents, which start the ranks, or MPI's daemons, which start them.
TEST_F(VariablesEnvironmentTest, ALauncherInsideAnotherWins) {
  const ScopedVariables slurm{{"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "2"}};
  {
    const ScopedVariables set{{"RANK", "5"}, {"WORLD_SIZE", "8"}};
    EXPECT_EQ(environment.detect()->launcher, "torchrun");
    EXPECT_EQ(environment.detect()->rank, 5);
  }
  {
    // torchrun numbers its agents in order of arrival, so one rank per agent may differ from
    // Slurm's number.
    const ScopedVariables set{{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"TORCHELASTIC_RUN_ID", "none"}};
    EXPECT_EQ(environment.detect()->launcher, "torchrun");
    EXPECT_EQ(environment.detect()->rank, 0);
  }
  const ScopedVariables set{{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "2"}};
  EXPECT_EQ(environment.detect()->launcher, "Open MPI");
}

// `export RANK=0 WORLD_SIZE=4` in a script that srun starts four times: four ranks 0 would wait.
TEST_F(VariablesEnvironmentTest, APlainRankThatContradictsTheLauncherIsRefusedWithAllNumbers) {
  const ScopedVariables plain{{"RANK", "0"}, {"WORLD_SIZE", "4"}};
  for (const auto& [rank, size] : {std::pair{"SLURM_PROCID", "SLURM_NTASKS"},
                                   {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
                                   {"PMI_RANK", "PMI_SIZE"}}) {
    const ScopedVariables set{{rank, "3"}, {size, "4"}};
    expect_error(Errc::invalid_argument,
                 {"RANK is 0", "WORLD_SIZE is 4", std::string(rank) + " is 3",
                  std::string(size) + " is 4", "TUTTI_RANK"},
                 [&] { (void)environment.detect(); });
    const ScopedVariables agreed{{"RANK", "3"}};
    EXPECT_EQ(environment.detect()->rank, 3) << "a script has copied them";
  }
  // mpirun in a script of Slurm, where SLURM_PROCID is 0 on every rank.
  const ScopedVariables set{{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}, {"PMI_RANK", "2"},
                            {"PMI_SIZE", "4"},     {"RANK", "2"},         {"WORLD_SIZE", "4"}};
  EXPECT_EQ(environment.detect()->rank, 2);
}

TEST_F(VariablesEnvironmentTest, HalfAPairIsNotCompletedByAnotherLauncher) {
  const ScopedVariables slurm{{"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "4"}};
  {
    const ScopedVariables set{{"WORLD_SIZE", "4"}};
    expect_error(Errc::invalid_argument, {"WORLD_SIZE is set", "RANK is not", "Slurm"},
                 [&] { (void)environment.detect(); });
  }
  {
    const ScopedVariables set{{"PMI_RANK", "1"}};
    expect_error(Errc::invalid_argument, {"PMI_RANK is set", "PMI_SIZE is not", "Slurm"},
                 [&] { (void)environment.detect(); });
  }
  const ScopedVariables set{{"TUTTI_RANK", "2"}, {"TUTTI_SIZE", "3"}, {"RANK", "2"}};
  EXPECT_EQ(environment.detect()->rank, 2) << "behind a whole pair a half one is ignored";
}

}  // namespace
}  // namespace tutti
