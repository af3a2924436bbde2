/* A repository agent for tests: copies the model's files with every byte shifted by the parameter `by`, or misbehaves. It appends
 * each action to the file of the parameter `journal`. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "triton/core/tritonrepoagent.h"

static const char* parameter(TRITONREPOAGENT_Agent* agent, TRITONREPOAGENT_AgentModel* model, const char* wanted) {
    uint32_t count = 0;
    TRITONREPOAGENT_ModelParameterCount(agent, model, &count);
    for (uint32_t i = 0; i < count; i++) {
        const char *name, *value;
        TRITONREPOAGENT_ModelParameter(agent, model, i, &name, &value);
        if (strcmp(name, wanted) == 0) return value;
    }
    return "";
}

static TRITONSERVER_Error* copy(const char* from, const char* to, const char* file, int by) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", from, file);
    FILE* input = fopen(path, "rb");
    snprintf(path, sizeof path, "%s/%s", to, file);
    FILE* output = input == NULL ? NULL : fopen(path, "wb");
    if (output == NULL) return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INTERNAL, "a file cannot be copied");
    for (int byte; (byte = fgetc(input)) != EOF;) fputc(byte + by, output);
    fclose(input);
    fclose(output);
    return NULL;
}

static TRITONSERVER_Error* load(TRITONREPOAGENT_Agent* agent, TRITONREPOAGENT_AgentModel* model) {
    TRITONREPOAGENT_ArtifactType type;
    const char *from, *to, *again;
    const char* behaviour = parameter(agent, model, "behaviour");
    TRITONREPOAGENT_ModelRepositoryLocation(agent, model, &type, &from);
    TRITONSERVER_Error* error = TRITONREPOAGENT_ModelRepositoryLocationAcquire(
        agent, model, TRITONREPOAGENT_ARTIFACT_REMOTE_FILESYSTEM, &to);
    if (error == NULL) abort(); /* only local folders are given */
    TRITONSERVER_ErrorDelete(error);
    error = TRITONREPOAGENT_ModelRepositoryLocationAcquire(agent, model, TRITONREPOAGENT_ARTIFACT_FILESYSTEM, &to);
    if (error != NULL) return error;
    TRITONREPOAGENT_ModelRepositoryLocationAcquire(agent, model, TRITONREPOAGENT_ARTIFACT_FILESYSTEM, &again);
    if (strcmp(to, again) != 0) abort();
    error = copy(from, to, "config.pbtxt", 0);
    if (error != NULL) return error;
    if (strcmp(behaviour, "fail") == 0) return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INTERNAL, "the key is wrong");
    if (strcmp(behaviour, "crash") == 0) raise(SIGSEGV);
    if (strcmp(behaviour, "hang") == 0) pause();
    char folder[4096];
    snprintf(folder, sizeof folder, "%s/1", to);
    mkdir(folder, 0700);
    if (strcmp(behaviour, "half") != 0) error = copy(from, to, "1/model.bin", atoi(parameter(agent, model, "by")));
    if (error != NULL) return error;
    if (strcmp(behaviour, "elsewhere") == 0) to = "/nonexistent/m";
    return TRITONREPOAGENT_ModelRepositoryUpdate(agent, model, TRITONREPOAGENT_ARTIFACT_FILESYSTEM, to);
}

TRITONSERVER_Error* TRITONREPOAGENT_Initialize(TRITONREPOAGENT_Agent* agent) {
    uint32_t major, minor;
    TRITONREPOAGENT_ApiVersion(&major, &minor);
    if (major != TRITONREPOAGENT_API_VERSION_MAJOR || minor < TRITONREPOAGENT_API_VERSION_MINOR)
        return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_UNSUPPORTED, "another version");
    return TRITONREPOAGENT_SetState(agent, calloc(1, 1));
}

TRITONSERVER_Error* TRITONREPOAGENT_Finalize(TRITONREPOAGENT_Agent* agent) {
    void* state;
    TRITONREPOAGENT_State(agent, &state);
    free(state);
    return NULL;
}

TRITONSERVER_Error* TRITONREPOAGENT_ModelInitialize(TRITONREPOAGENT_Agent* agent, TRITONREPOAGENT_AgentModel* model) {
    TRITONSERVER_Message* config;
    const char* text;
    size_t size;
    if (TRITONREPOAGENT_ModelConfig(agent, model, 1, &config) != NULL) abort();
    TRITONSERVER_MessageSerializeToJson(config, &text, &size);
    if (memmem(text, size, "model_repository_agents", 23) == NULL) abort();
    TRITONSERVER_MessageDelete(config);
    return TRITONREPOAGENT_ModelSetState(model, calloc(1, 1));
}

TRITONSERVER_Error* TRITONREPOAGENT_ModelFinalize(TRITONREPOAGENT_Agent* agent, TRITONREPOAGENT_AgentModel* model) {
    void* state;
    TRITONREPOAGENT_ModelState(model, &state);
    free(state);
    return TRITONREPOAGENT_ModelRepositoryLocationRelease(agent, model, NULL);
}

TRITONSERVER_Error* TRITONREPOAGENT_ModelAction(
    TRITONREPOAGENT_Agent* agent, TRITONREPOAGENT_AgentModel* model, const TRITONREPOAGENT_ActionType action) {
    static const char* names[] = {"LOAD", "LOAD_COMPLETE", "LOAD_FAIL", "UNLOAD", "UNLOAD_COMPLETE"};
    FILE* journal = fopen(parameter(agent, model, "journal"), "a");
    if (journal != NULL) {
        fprintf(journal, "%s %s\n", parameter(agent, model, "by"), names[action]);
        fclose(journal);
    }
    printf("an agent may print\n");
    return action == TRITONREPOAGENT_ACTION_LOAD ? load(agent, model) : NULL;
}
