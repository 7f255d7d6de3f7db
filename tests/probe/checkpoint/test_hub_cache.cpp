// Model ids resolve in the local hub cache as huggingface_hub does, offline.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "probe/checkpoint/hub_cache.h"
#include "tests/probe/checkpoint/checkpoint_fixture.h"

namespace blockscope {
namespace {

namespace fs = std::filesystem;
using test::checkpoint_error;
using test::TempFolder;
using testing::HasSubstr;

constexpr const char* kSha = "0123456789abcdef0123456789abcdef01234567";

void make_snapshot(const fs::path& cache) {
  test::write_text(cache / "models--org--tiny-model" / "refs" / "main", kSha);
  test::write_text(cache / "models--org--tiny-model" / "refs" / "pr" / "1", kSha);
  test::write_text(cache / "models--org--tiny-model" / "snapshots" / kSha / "config.json", "{}");
}

TEST(HubCache, TheCacheDirectoryFollowsTheOrderOfHuggingfaceHub) {
  HubEnvironment environment;
  EXPECT_EQ(hub_cache_directory(environment), fs::path());
  environment.home = "/home/u";
  EXPECT_EQ(hub_cache_directory(environment), "/home/u/.cache/huggingface/hub");
  environment.xdg_cache_home = "/xdg";
  EXPECT_EQ(hub_cache_directory(environment), "/xdg/huggingface/hub");
  environment.hf_home = "~/hf";
  EXPECT_EQ(hub_cache_directory(environment), "/home/u/hf/hub");
  environment.huggingface_hub_cache = "/legacy";
  EXPECT_EQ(hub_cache_directory(environment), "/legacy");
  environment.hf_hub_cache = "/cache";
  EXPECT_EQ(hub_cache_directory(environment), "/cache");
}

TEST(HubCache, AModelIdResolvesThroughItsReferenceToASnapshot) {
  const TempFolder folder;
  make_snapshot(folder.path());
  HubEnvironment environment;
  environment.hf_hub_cache = folder.path();
  for (const std::string revision : {"", "main", "pr/1", kSha}) {
    const ResolvedModel model = resolve_model("org/tiny-model", revision, environment);
    EXPECT_EQ(model.snapshot, kSha) << revision;
    EXPECT_TRUE(fs::exists(model.folder / "config.json"));
    EXPECT_EQ(model.requested, "org/tiny-model");
  }
  EXPECT_EQ(resolve_model("org/tiny-model", "", environment).revision, "main");
}

TEST(HubCache, AnExistingFolderWinsAndASnapshotPathKeepsItsCommit) {
  const TempFolder folder;
  make_snapshot(folder.path());
  const fs::path snapshot = folder.path() / "models--org--tiny-model" / "snapshots" / kSha;
  EXPECT_EQ(resolve_model(snapshot, "", {}).snapshot, kSha);
  const ResolvedModel plain = resolve_model(folder.path(), "", {});
  EXPECT_EQ(plain.folder, folder.path());
  EXPECT_EQ(plain.snapshot, "");
}

TEST(HubCache, TheErrorNamesEveryPlaceLookedIn) {
  const TempFolder folder;
  make_snapshot(folder.path());
  HubEnvironment environment;
  environment.hf_hub_cache = folder.path();
  const std::string error =
      checkpoint_error([&] { resolve_model("org/other", "v1", environment); });
  const std::string repository = (folder.path() / "models--org--other").string();
  EXPECT_THAT(error, HasSubstr(repository + "/refs/v1"));
  EXPECT_THAT(error, HasSubstr(repository + "/snapshots/v1"));
  EXPECT_THAT(error, HasSubstr((fs::current_path() / "org/other").string()));
  EXPECT_THAT(checkpoint_error([] { resolve_model("org/other", "", {}); }), HasSubstr("HF_HOME"));
}

TEST(HubCache, AFileIsNoModelAndNothingToFetch) {
  const TempFolder folder;
  test::write_text(folder.path() / "p.jsonl", "{}");
  const std::string file = (folder.path() / "p.jsonl").string();
  const std::string error = checkpoint_error([&] { resolve_model(file, "", {}); });
  EXPECT_THAT(error, HasSubstr("model " + file + ": expected a folder or a model id, got a file"));
  EXPECT_THAT(error, HasSubstr("HINT: the model comes first"));
  EXPECT_THAT(error, testing::Not(HasSubstr("hf download")));
}

TEST(HubCache, NamesThatWouldLeaveTheCacheAreRefused) {
  const TempFolder folder;
  make_snapshot(folder.path());
  test::write_text(folder.path() / "models--org--evil" / "refs" / "main",
                   "../../models--org--tiny-model");
  HubEnvironment environment;
  environment.hf_hub_cache = folder.path();
  for (const char* id : {"../x", "a/b/c", "/nonexistent/x", "org/", "a b", "org/..", ""}) {
    EXPECT_THROW(resolve_model(id, "", environment), CheckpointError) << id;
  }
  EXPECT_THROW(resolve_model("org/tiny-model", "../main", environment), CheckpointError);
  EXPECT_THROW(resolve_model("org/evil", "", environment), CheckpointError);
}

}  // namespace
}  // namespace blockscope
