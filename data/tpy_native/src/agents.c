/* Repository agents, TRITONREPOAGENT_*, and what the Python side calls of them. As entry.c. */
#include <dlfcn.h>
#include <ftw.h>
#include <stdio.h>
#include <sys/stat.h>

#include "host.h"
#include "triton/core/tritonrepoagent.h"

typedef Error* (*AgentFunction)(TRITONREPOAGENT_Agent*);
typedef Error* (*AgentModelFunction)(TRITONREPOAGENT_Agent*, TRITONREPOAGENT_AgentModel*);
typedef Error* (*ActionFunction)(TRITONREPOAGENT_Agent*, TRITONREPOAGENT_AgentModel*, const TRITONREPOAGENT_ActionType);

struct TRITONREPOAGENT_Agent {
    uint32_t live;
    void* state;
    AgentFunction finalize;
    AgentModelFunction model_initialize, model_finalize;
    ActionFunction action;
};

struct TRITONREPOAGENT_AgentModel {
    uint32_t live;
    TRITONREPOAGENT_Agent* agent;
    char* location;
    char* mutable_location; /* a path that is free for the agent */
    bool acquired;
    bool loading;
    char* config;
    char** parameters; /* name, value, name, value... */
    uint32_t parameter_count;
    void* state;
};

/* ---- what agents call */

#define REQUIRE_BOTH(agent, model)                                                                 \
    REQUIRE(agent, LIVE_AGENT);                                                                    \
    REQUIRE(model, LIVE_AGENT_MODEL)

Error* TRITONREPOAGENT_ApiVersion(uint32_t* major, uint32_t* minor) {
    *major = TRITONREPOAGENT_API_VERSION_MAJOR;
    *minor = TRITONREPOAGENT_API_VERSION_MINOR;
    return NULL;
}

Error* TRITONREPOAGENT_ModelRepositoryLocation(
    TRITONREPOAGENT_Agent* agent, TRITONREPOAGENT_AgentModel* model, TRITONREPOAGENT_ArtifactType* type, const char** location) {
    REQUIRE_BOTH(agent, model);
    *type = TRITONREPOAGENT_ARTIFACT_FILESYSTEM;
    *location = model->location;
    return NULL;
}

static Error* only_local(const TRITONREPOAGENT_ArtifactType type) {
    if (type == TRITONREPOAGENT_ARTIFACT_FILESYSTEM) return NULL;
    return tpy_error(
        TRITONSERVER_ERROR_INVALID_ARG, "Unexpected artifact type, expects 'TRITONREPOAGENT_ARTIFACT_FILESYSTEM'");
}

Error* TRITONREPOAGENT_ModelRepositoryLocationAcquire(
    TRITONREPOAGENT_Agent* agent, TRITONREPOAGENT_AgentModel* model, const TRITONREPOAGENT_ArtifactType type,
    const char** location) {
    REQUIRE_BOTH(agent, model);
    Error* error = only_local(type);
    if (error != NULL) return error;
    if (!model->acquired && mkdir(model->mutable_location, 0700) != 0)
        return tpy_error(TRITONSERVER_ERROR_INTERNAL, "Failed to create local temp folder: %s, %m", model->mutable_location);
    model->acquired = true;
    *location = model->mutable_location;
    return NULL;
}

static int remove_one(const char* path, const struct stat* status, int kind, struct FTW* walk) {
    (void)status, (void)kind, (void)walk;
    return remove(path);
}

Error* TRITONREPOAGENT_ModelRepositoryLocationRelease(
    TRITONREPOAGENT_Agent* agent, TRITONREPOAGENT_AgentModel* model, const char* location) {
    REQUIRE_BOTH(agent, model);
    (void)location; /* there is one at most */
    if (!model->acquired) return tpy_error(TRITONSERVER_ERROR_UNAVAILABLE, "No mutable location to be deleted");
    model->acquired = false;
    nftw(model->mutable_location, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    return NULL;
}

Error* TRITONREPOAGENT_ModelRepositoryUpdate(
    TRITONREPOAGENT_Agent* agent, TRITONREPOAGENT_AgentModel* model, const TRITONREPOAGENT_ArtifactType type,
    const char* location) {
    REQUIRE_BOTH(agent, model);
    if (!model->loading)
        return tpy_error(
            TRITONSERVER_ERROR_INVALID_ARG, "location can only be updated during TRITONREPOAGENT_ACTION_LOAD");
    Error* error = only_local(type);
    if (error != NULL) return error;
    if (location == NULL || *location == 0)
        return tpy_error(TRITONSERVER_ERROR_INVALID_ARG, "Model repository location is not set");
    char* copy = tpy_copy(location); /* which may be the one that is there */
    free(model->location);
    model->location = copy;
    return NULL;
}

Error* TRITONREPOAGENT_ModelParameterCount(TRITONREPOAGENT_Agent* agent, TRITONREPOAGENT_AgentModel* model, uint32_t* count) {
    REQUIRE_BOTH(agent, model);
    *count = model->parameter_count / 2;
    return NULL;
}

Error* TRITONREPOAGENT_ModelParameter(
    TRITONREPOAGENT_Agent* agent, TRITONREPOAGENT_AgentModel* model, const uint32_t index, const char** name,
    const char** value) {
    REQUIRE_BOTH(agent, model);
    if (index >= model->parameter_count / 2)
        return tpy_error(TRITONSERVER_ERROR_INVALID_ARG, "index out of range for model parameters");
    *name = model->parameters[2 * index];
    *value = model->parameters[2 * index + 1];
    return NULL;
}

Error* TRITONREPOAGENT_ModelConfig(
    TRITONREPOAGENT_Agent* agent, TRITONREPOAGENT_AgentModel* model, const uint32_t version, TRITONSERVER_Message** config) {
    REQUIRE_BOTH(agent, model);
    if (version != 1)
        return tpy_error(
            TRITONSERVER_ERROR_INVALID_ARG, "model configuration version %u not supported, supported versions are: 1", version);
    *config = tpy_message(model->config, strlen(model->config));
    return NULL;
}

Error* TRITONREPOAGENT_ModelState(TRITONREPOAGENT_AgentModel* model, void** state) {
    REQUIRE(model, LIVE_AGENT_MODEL);
    *state = model->state;
    return NULL;
}

Error* TRITONREPOAGENT_ModelSetState(TRITONREPOAGENT_AgentModel* model, void* state) {
    REQUIRE(model, LIVE_AGENT_MODEL);
    model->state = state;
    return NULL;
}

Error* TRITONREPOAGENT_State(TRITONREPOAGENT_Agent* agent, void** state) {
    REQUIRE(agent, LIVE_AGENT);
    *state = agent->state;
    return NULL;
}

Error* TRITONREPOAGENT_SetState(TRITONREPOAGENT_Agent* agent, void* state) {
    REQUIRE(agent, LIVE_AGENT);
    agent->state = state;
    return NULL;
}

/* ---- what the Python side calls */

TPY_API PyObject* tpy_agent_open(const char* path) {
    TRITONREPOAGENT_Agent* agent = calloc(1, sizeof *agent);
    agent->live = LIVE_AGENT;
    PyThreadState* state = PyEval_SaveThread();
    void* library;
    Error* error = tpy_load_library(path, "repository agent", &library);
    if (error == NULL) {
        AgentFunction initialize;
        *(void**)&initialize = dlsym(library, "TRITONREPOAGENT_Initialize");
        *(void**)&agent->finalize = dlsym(library, "TRITONREPOAGENT_Finalize");
        *(void**)&agent->model_initialize = dlsym(library, "TRITONREPOAGENT_ModelInitialize");
        *(void**)&agent->model_finalize = dlsym(library, "TRITONREPOAGENT_ModelFinalize");
        *(void**)&agent->action = dlsym(library, "TRITONREPOAGENT_ModelAction");
        if (agent->action == NULL)
            error = tpy_error(
                TRITONSERVER_ERROR_NOT_FOUND,
                "unable to find required entrypoint 'TRITONREPOAGENT_ModelAction' in repository agent library '%s'", path);
        else if (initialize != NULL)
            error = tpy_with_version(
                initialize(agent), "TRITONREPOAGENT", TRITONREPOAGENT_API_VERSION_MAJOR, TRITONREPOAGENT_API_VERSION_MINOR);
    }
    PyEval_RestoreThread(state);
    if (error == NULL) return PyLong_FromVoidPtr(agent);
    agent->live = 0;
    free(agent);
    return tpy_error_pair(error);
}

static void agent_model_free(TRITONREPOAGENT_AgentModel* model) {
    model->live = 0;
    free(model->location);
    free(model->mutable_location);
    free(model->config);
    tpy_free_texts(model->parameters, model->parameter_count);
    free(model);
}

TPY_API PyObject* tpy_agent_model_open(
    TRITONREPOAGENT_Agent* agent, const char* location, const char* mutable_location, const char* config,
    PyObject* parameters) {
    TRITONREPOAGENT_AgentModel* model = calloc(1, sizeof *model);
    model->live = LIVE_AGENT_MODEL;
    model->agent = agent;
    model->location = tpy_copy(location);
    model->mutable_location = tpy_copy(mutable_location);
    model->config = tpy_copy(config);
    model->parameters = tpy_copy_texts(parameters, &model->parameter_count);
    PyThreadState* state = PyEval_SaveThread();
    Error* error = agent->model_initialize == NULL ? NULL : agent->model_initialize(agent, model);
    PyEval_RestoreThread(state);
    if (error == NULL) return PyLong_FromVoidPtr(model);
    agent_model_free(model);
    return tpy_error_pair(error);
}

TPY_API PyObject* tpy_agent_model_act(TRITONREPOAGENT_AgentModel* model, int action) {
    model->loading = action == TRITONREPOAGENT_ACTION_LOAD;
    PyThreadState* state = PyEval_SaveThread();
    Error* error = model->agent->action(model->agent, model, (TRITONREPOAGENT_ActionType)action);
    PyEval_RestoreThread(state);
    model->loading = false;
    return tpy_none_or(error);
}

TPY_API PyObject* tpy_agent_model_location(TRITONREPOAGENT_AgentModel* model) { return tpy_text_of(model->location); }

TPY_API PyObject* tpy_agent_model_close(TRITONREPOAGENT_AgentModel* model) {
    PyThreadState* state = PyEval_SaveThread();
    Error* error = model->agent->model_finalize == NULL ? NULL : model->agent->model_finalize(model->agent, model);
    PyEval_RestoreThread(state);
    agent_model_free(model);
    return tpy_none_or(error);
}

TPY_API PyObject* tpy_agent_close(TRITONREPOAGENT_Agent* agent) {
    PyThreadState* state = PyEval_SaveThread();
    Error* error = agent->finalize == NULL ? NULL : agent->finalize(agent);
    PyEval_RestoreThread(state);
    agent->live = 0;
    free(agent);
    return tpy_none_or(error);
}
