/* A repository agent: refuses models without a file MODEL_CARD.md. */
#include <stdio.h>
#include <unistd.h>

#include "triton/core/tritonrepoagent.h"

/* The one function that has to be there. An error in LOAD refuses the model; later it is only logged. */
TRITONSERVER_Error* TRITONREPOAGENT_ModelAction(
    TRITONREPOAGENT_Agent* agent, TRITONREPOAGENT_AgentModel* model, const TRITONREPOAGENT_ActionType action) {
    TRITONREPOAGENT_ArtifactType type;
    const char* folder;
    char path[4096];
    if (action != TRITONREPOAGENT_ACTION_LOAD) return NULL;
    TRITONSERVER_Error* error = TRITONREPOAGENT_ModelRepositoryLocation(agent, model, &type, &folder);
    if (error != NULL) return error;
    if (snprintf(path, sizeof path, "%s/MODEL_CARD.md", folder) < (int)sizeof path && access(path, R_OK) == 0) return NULL;
    return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INVALID_ARG, "the model has no MODEL_CARD.md");
}
