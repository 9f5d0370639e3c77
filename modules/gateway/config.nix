# The gateway's nginx text (what goes into the http block), a pure function of the settings.  vLLM checks its key on
# some paths only; here every path but /health needs one, and what is not on the list does not exist.  Whether the pair
# is ready is asked of the agent: the engine's own /health stays 200 beside a dead rank.
{ lib }:
{
  serverName,
  listen,
  certificate,
  certificateKey,
  upstream,
  readiness,
  stateDirectory,
  routes,
  requestsPerMinute,
  burst,
  streamsPerKey,
  bodyLimit,
  readTimeoutSeconds,
}:
let
  error =
    status: type: message:
    ''return ${toString status} '${
      builtins.toJSON {
        error = {
          inherit message type;
          code = status;
        };
      }
    }';'';

  methods = route: lib.concatStringsSep "|" (route.methods ++ lib.optional (lib.elem "GET" route.methods) "HEAD");
  block = name: lines: [ "${name} {" ] ++ map (line: "  ${line}") lines ++ [ "}" ];
  location =
    path: route:
    block "location = ${path}" (
      block "if ($request_method !~ ^(${methods route})$)" [ (error 405 "invalid_request_error" "Method not allowed.") ]
      ++ lib.optionals route.key (
        block ''if ($sparkloom_client = "")'' [ "return 401;" ]
        ++ [
          "limit_req zone=sparkloom_requests burst=${toString burst} nodelay;"
          "limit_conn sparkloom_streams ${toString streamsPerKey};"
          "auth_request /_sparkloom_ready;"
        ]
      )
      ++ (
        if path == "/health" then
          # The agent needs no key: neither the client's nor the engine's.
          [ "proxy_set_header Authorization \"\";" "proxy_pass http://sparkloom_agent/ready;" ]
        else
          [ "proxy_pass http://sparkloom_engine;" ]
      )
    );
in
''
  upstream sparkloom_engine {
    server ${upstream};
    keepalive 16;
  }
  upstream sparkloom_agent {
    server ${readiness};
    keepalive 4;
  }

  map_hash_bucket_size 512;
  # Name of the client by its Authorization header; the keys are read from a file that is made at start.
  map $http_authorization $sparkloom_client {
    default "";
    include ${stateDirectory}/keys.map;
  }
  limit_req_zone $sparkloom_client zone=sparkloom_requests:1m rate=${toString requestsPerMinute}r/m;
  limit_req_status 429;
  limit_conn_zone $sparkloom_client zone=sparkloom_streams:1m;
  limit_conn_status 429;

  server {
    listen ${listen} ssl;
    server_name ${serverName};
    ssl_certificate ${certificate};
    ssl_certificate_key ${certificateKey};
    ssl_protocols TLSv1.2 TLSv1.3;
    server_tokens off;
    default_type application/json;
    client_max_body_size ${bodyLimit};
    # Prompts and keys stay out of the log: the path has neither.
    log_not_found off;

    # Answers stream token by token: nothing may collect them on the way.
    proxy_http_version 1.1;
    proxy_buffering off;
    proxy_cache off;
    gzip off;
    proxy_read_timeout ${toString readTimeoutSeconds}s;
    proxy_send_timeout ${toString readTimeoutSeconds}s;
    proxy_set_header Connection "";
    proxy_set_header Host $host;
    proxy_set_header X-Forwarded-For $remote_addr;
    proxy_set_header X-Forwarded-Proto $scheme;
    include ${stateDirectory}/upstream.conf;
    proxy_next_upstream off;
    proxy_intercept_errors on;

    error_page 401 @no_key;
    error_page 413 @too_large;
    error_page 429 @throttled;
    error_page 502 503 504 @unavailable;
    error_page 403 =503 @unavailable;
    location @no_key {
      add_header WWW-Authenticate Bearer always;
      ${error 401 "authentication_error" "A valid key is needed: Authorization: Bearer KEY."}
    }
    location @too_large {
      ${error 413 "invalid_request_error" "The request is larger than ${bodyLimit}."}
    }
    location @throttled {
      add_header Retry-After ${toString (lib.max 1 (60 / requestsPerMinute))} always;
      ${error 429 "rate_limit_error" "Too many requests with this key. Retry after the time in Retry-After."}
    }
    location @unavailable {
      add_header Retry-After 10 always;
      ${error 503 "overloaded_error" "The model is starting or its queue is full. Retry after the time in Retry-After."}
    }

    # Nothing new goes to a pair that is not ready or that drains; auth_request knows 2xx and 403 only.
    location = /_sparkloom_ready {
      internal;
      proxy_pass http://sparkloom_agent/ready;
      proxy_pass_request_body off;
      proxy_set_header Content-Length "";
      proxy_set_header Authorization "";
      error_page 502 503 504 = @not_ready;
    }
    location @not_ready {
      return 403;
    }

    ${lib.concatStringsSep "\n    " (lib.concatLists (lib.mapAttrsToList location routes))}
    location / {
      ${error 404 "invalid_request_error" "There is no such route."}
    }
  }
''
