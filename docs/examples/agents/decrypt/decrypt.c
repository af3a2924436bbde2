/* A repository agent that decrypts model folders with a key from the environment: tpy_decrypt.py in C, with OpenSSL's libcrypto. */
#include <dirent.h>
#include <openssl/evp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "triton/core/tritonrepoagent.h"

enum { KEY_BYTES = 32, NONCE_BYTES = 12, TAG_BYTES = 16, STEP_BYTES = 1 << 20, PATH_BYTES = 4096 };

#define TRY(call)                                   \
    do {                                            \
        TRITONSERVER_Error* error_ = (call);        \
        if (error_ != NULL) return error_;          \
    } while (0)

static TRITONSERVER_Error* failure(const char* format, ...) {
    char text[PATH_BYTES + 256];
    va_list values;
    va_start(values, format);
    vsnprintf(text, sizeof text, format, values);
    va_end(values);
    return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INVALID_ARG, text);
}

/* One of the agent's parameters in the model's configuration, or `otherwise`. */
static const char* parameter(TRITONREPOAGENT_Agent* agent, TRITONREPOAGENT_AgentModel* model, const char* wanted, const char* otherwise) {
    const char *name, *value;
    uint32_t count = 0;
    TRITONSERVER_ErrorDelete(TRITONREPOAGENT_ModelParameterCount(agent, model, &count));
    for (uint32_t i = 0; i < count; i++) {
        TRITONSERVER_ErrorDelete(TRITONREPOAGENT_ModelParameter(agent, model, i, &name, &value));
        if (strcmp(name, wanted) == 0) return value;
    }
    return otherwise;
}

static TRITONSERVER_Error* read_key(const char* variable, unsigned char key[KEY_BYTES]) {
    const char* text = getenv(variable);
    int used = 0;
    bool is_key = text != NULL && strlen(text) == 2 * KEY_BYTES && strspn(text, "0123456789abcdefABCDEF") == 2 * KEY_BYTES;
    for (int i = 0; is_key && i < KEY_BYTES; i++) is_key = sscanf(text + 2 * i, "%2hhx%n", &key[i], &used) == 1 && used == 2;
    return is_key ? NULL : failure("%s has to be a key of %d hexadecimal digits", variable, 2 * KEY_BYTES);
}

/* Decrypts what is left of `input` but the tag at its end, which it checks last: false leaves a file that nobody may use. */
static bool decrypt(FILE* input, FILE* output, long size, const char* name, const unsigned char* key, EVP_CIPHER_CTX* cipher) {
    static unsigned char from[STEP_BYTES], to[STEP_BYTES + EVP_MAX_BLOCK_LENGTH];
    unsigned char nonce[NONCE_BYTES], tag[TAG_BYTES];
    int made;
    if (size < NONCE_BYTES + TAG_BYTES || fread(nonce, NONCE_BYTES, 1, input) != 1) return false;
    if (EVP_DecryptInit_ex(cipher, EVP_aes_256_gcm(), NULL, key, nonce) != 1) return false;
    if (EVP_DecryptUpdate(cipher, NULL, &made, (const unsigned char*)name, (int)strlen(name)) != 1) return false;
    for (size_t left = (size_t)size - NONCE_BYTES - TAG_BYTES; left > 0;) {
        size_t step = left < STEP_BYTES ? left : STEP_BYTES;
        if (fread(from, step, 1, input) != 1) return false;
        if (EVP_DecryptUpdate(cipher, to, &made, from, (int)step) != 1) return false;
        if (fwrite(to, 1, (size_t)made, output) != (size_t)made) return false;
        left -= step;
    }
    if (fread(tag, TAG_BYTES, 1, input) != 1) return false;
    if (EVP_CIPHER_CTX_ctrl(cipher, EVP_CTRL_GCM_SET_TAG, TAG_BYTES, tag) != 1) return false;
    return EVP_DecryptFinal_ex(cipher, to, &made) == 1;
}

static bool copy(FILE* input, FILE* output) {
    static char buffer[STEP_BYTES];
    for (size_t count; (count = fread(buffer, 1, sizeof buffer, input)) > 0;)
        if (fwrite(buffer, 1, count, output) != count) return false;
    return !ferror(input);
}

static TRITONSERVER_Error* make_file(
    const char* source, const char* target, const char* name, long size, const char* variable, const unsigned char* key) {
    FILE* input = fopen(source, "rb");
    FILE* output = input == NULL ? NULL : fopen(target, "wb");
    EVP_CIPHER_CTX* cipher = EVP_CIPHER_CTX_new();
    TRITONSERVER_Error* error = NULL;
    if (output == NULL || cipher == NULL) {
        error = failure("'%s' cannot be read, or written again", name);
    } else if (strcmp(name, "config.pbtxt") == 0) { /* it names this agent, so it is not encrypted */
        if (!copy(input, output)) error = failure("'%s' cannot be copied", name);
    } else if (!decrypt(input, output, size, name, key, cipher)) {
        error = failure("'%s' was changed, or was not encrypted with the key in %s", name, variable);
    }
    EVP_CIPHER_CTX_free(cipher);
    if (output != NULL && fclose(output) != 0 && error == NULL) error = failure("'%s' cannot be written", name);
    if (input != NULL) fclose(input);
    return error;
}

static bool join(char path[PATH_BYTES], const char* folder, const char* name) {
    return snprintf(path, PATH_BYTES, "%s/%s", folder, name) < PATH_BYTES;
}

/* Makes the files of the folder `from`/`name` in `to`/`name`; `name` is "" or ends with a slash. */
static TRITONSERVER_Error* make_folder(
    const char* from, const char* to, const char* name, const char* variable, const unsigned char* key) {
    char source[PATH_BYTES], target[PATH_BYTES], inner[PATH_BYTES];
    TRITONSERVER_Error* error = NULL;
    DIR* folder = join(source, from, name) ? opendir(source) : NULL;
    if (folder == NULL) return failure("'%s/%s' cannot be read", from, name);
    for (struct dirent* entry; error == NULL && (entry = readdir(folder)) != NULL;) {
        struct stat found;
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
        if (snprintf(inner, sizeof inner, "%s%s", name, entry->d_name) >= PATH_BYTES - 1 || !join(source, from, inner) ||
            !join(target, to, inner) || stat(source, &found) != 0) {
            error = failure("'%s%s' cannot be read", name, entry->d_name);
        } else if (!S_ISDIR(found.st_mode)) {
            error = make_file(source, target, inner, (long)found.st_size, variable, key);
        } else if (mkdir(target, 0700) != 0) {
            error = failure("the folder '%s' cannot be made", inner);
        } else {
            error = make_folder(from, to, strcat(inner, "/"), variable, key);
        }
    }
    closedir(folder);
    return error;
}

TRITONSERVER_Error* TRITONREPOAGENT_ModelAction(
    TRITONREPOAGENT_Agent* agent, TRITONREPOAGENT_AgentModel* model, const TRITONREPOAGENT_ActionType action) {
    TRITONREPOAGENT_ArtifactType type;
    const char *from, *to;
    unsigned char key[KEY_BYTES];
    void* acquired;
    switch (action) {
        case TRITONREPOAGENT_ACTION_LOAD: {
            const char* variable = parameter(agent, model, "variable", "MODEL_KEY");
            TRY(read_key(variable, key));
            TRY(TRITONREPOAGENT_ModelRepositoryLocation(agent, model, &type, &from));
            TRY(TRITONREPOAGENT_ModelRepositoryLocationAcquire(agent, model, TRITONREPOAGENT_ARTIFACT_FILESYSTEM, &to));
            TRY(TRITONREPOAGENT_ModelSetState(model, (void*)to));
            TRITONSERVER_Error* error = make_folder(from, to, "", variable, key);
            OPENSSL_cleanse(key, sizeof key);
            TRY(error);
            return TRITONREPOAGENT_ModelRepositoryUpdate(agent, model, TRITONREPOAGENT_ARTIFACT_FILESYSTEM, to);
        }
        case TRITONREPOAGENT_ACTION_LOAD_FAIL:
        case TRITONREPOAGENT_ACTION_UNLOAD_COMPLETE: /* nobody reads the files any more */
            TRY(TRITONREPOAGENT_ModelState(model, &acquired));
            return acquired == NULL ? NULL : TRITONREPOAGENT_ModelRepositoryLocationRelease(agent, model, acquired);
        default:
            return NULL;
    }
}
