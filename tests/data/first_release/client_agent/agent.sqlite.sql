BEGIN TRANSACTION;
CREATE TABLE payloads (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        server TEXT,
        key TEXT,
        job_id INTEGER,
        attempt INTEGER,
        service TEXT NOT NULL,
        user_id TEXT NOT NULL,
        timeout_s REAL NOT NULL,
        limits TEXT NOT NULL,
        bundle_file TEXT NOT NULL,
        bundle_size INTEGER NOT NULL,
        bundle_digest TEXT NOT NULL,
        state TEXT NOT NULL,
        changed INTEGER NOT NULL,
        acknowledged INTEGER NOT NULL DEFAULT 0,
        loc TEXT NOT NULL DEFAULT '',
        pid INTEGER NOT NULL DEFAULT 0,
        reason TEXT,
        message TEXT NOT NULL DEFAULT '',
        exit_code INTEGER,
        interrupted INTEGER NOT NULL DEFAULT 0,
        stderr_tail TEXT NOT NULL DEFAULT '',
        usage TEXT,
        warnings TEXT NOT NULL DEFAULT '[]',
        enforcement TEXT NOT NULL DEFAULT '{}',
        result_size INTEGER,
        result_sha256 TEXT,
        created_at INTEGER NOT NULL,
        started_at INTEGER,
        ended_at INTEGER,
        cleaned_at INTEGER,
        UNIQUE (server, key)
    ) STRICT
    ;
INSERT INTO "payloads" VALUES(1,'ff5ce0eaf5055ffe13813956e2a2579e','1.1',1,1,'example','1',3600.0,'{"cpus":1.0,"memory":67108864,"pids":256,"disk":33554432,"log":16777216,"results":2147483648,"network":false}','87852c3a6d9f6639da1f2d0f73fc03dd',150,'1bca8264e03eacddcce75d1490f639664d0eae580baa1ac06072393cdb5e9a02','Cleaned',4,1,'/run/ferryman/ferryman-f325d38b0d37/image.3/job',0,NULL,'',0,0,'','{"wall_s":0.007791,"cpu_s":0.012926,"peak_memory_bytes":1839104}','[]','{"memory": "hard", "pids": "hard", "cpu": "hard", "disk": "hard", "wall": "hard", "log": "hard", "results": "hard", "files": "hard", "network": "hard", "isolation": "hard"}',NULL,NULL,1795284340846832,1795284340881958,1795284340891965,1795284340902502);
INSERT INTO "payloads" VALUES(2,'ff5ce0eaf5055ffe13813956e2a2579e','2.1',2,1,'example','1',3600.0,'{"cpus":1.0,"memory":67108864,"pids":256,"disk":33554432,"log":16777216,"results":2147483648,"network":false}','25554bd5a86228f775939eb8c4c1adc5',136,'f33f0f5ddc13084be69605afe239a200f7fa3db3e455991edb4f4d08e8de2066','Cleaned',8,1,'/run/ferryman/ferryman-f325d38b0d37/image.3/job',0,'exit_code','run.sh ended with exit code 3',3,0,'','{"wall_s":0.004925,"cpu_s":0.013329,"peak_memory_bytes":1626112}','[]','{"memory": "hard", "pids": "hard", "cpu": "hard", "disk": "hard", "wall": "hard", "log": "hard", "results": "hard", "files": "hard", "network": "hard", "isolation": "hard"}',NULL,NULL,1795284340923436,1795284340945312,1795284340951824,1795284340963705);
INSERT INTO "payloads" VALUES(3,'ff5ce0eaf5055ffe13813956e2a2579e','3.1',3,1,'example','1',3600.0,'{"cpus":1.0,"memory":67108864,"pids":256,"disk":33554432,"log":16777216,"results":2147483648,"network":false}','29e2a5709853cbd9a3259e7f66857adc',140,'4a4cd4d619a137388cee4e319684e9ef017e279f845627d3870faadfa83f2cfe','Cleaned',14,1,'/run/ferryman/ferryman-f325d38b0d37/image.3/job',0,NULL,'cancelled while it ran',143,0,'','{"wall_s":0.026368,"cpu_s":0.014212,"peak_memory_bytes":1794048}','[]','{"memory": "hard", "pids": "hard", "cpu": "hard", "disk": "hard", "wall": "hard", "log": "hard", "results": "hard", "files": "hard", "network": "hard", "isolation": "hard"}',NULL,NULL,1795284340977559,1795284340995155,1795284341023457,1795284341045996);
INSERT INTO "payloads" VALUES(4,'ff5ce0eaf5055ffe13813956e2a2579e','4.1',4,1,'example','1',3600.0,'{"cpus":1.0,"memory":67108864,"pids":256,"disk":33554432,"log":16777216,"results":2147483648,"network":false}','6a8af6bab6a4f17f113f217d9212fc78',202,'c70dbf0ae262007e3267e456a2561e67d464800ab3804afacfba881c0b58d45b','Running',15,0,'/run/ferryman/ferryman-f325d38b0d37/image.3/job',25605,NULL,'',NULL,0,'',NULL,'[]','{"memory": "hard", "pids": "hard", "cpu": "hard", "disk": "hard", "wall": "hard", "log": "hard", "results": "hard", "files": "hard", "network": "hard", "isolation": "hard"}',NULL,NULL,1795284341046602,1795284341060729,NULL,NULL);
INSERT INTO "payloads" VALUES(5,'ff5ce0eaf5055ffe13813956e2a2579e','5.1',5,1,'example','1',3600.0,'{"cpus":1.0,"memory":67108864,"pids":256,"disk":33554432,"log":16777216,"results":2147483648,"network":false}','4c8d801bfe914318513f439d0ce9d26d',163,'35ac52d31b4a964beb1002df74ae30d2847eb17920c02817d0b328ef02ded4a2','Completed',18,0,'/run/ferryman/ferryman-f325d38b0d37/image.4/job',0,NULL,'',0,0,'','{"wall_s":2.007882,"cpu_s":0.014606,"peak_memory_bytes":1994752}','[]','{"memory": "hard", "pids": "hard", "cpu": "hard", "disk": "hard", "wall": "hard", "log": "hard", "results": "hard", "files": "hard", "network": "hard", "isolation": "hard"}',1125,'b2392f180c39d4a83cd82495c249dbc4e673b5133d287a6dcc1b1b49c6bdabc2',1795284341096358,1795284341112746,1795284343122486,NULL);
CREATE TABLE refusals (
        server TEXT NOT NULL,
        key TEXT NOT NULL,
        job_id INTEGER NOT NULL,
        attempt INTEGER NOT NULL,
        at INTEGER NOT NULL,
        PRIMARY KEY (server, key)
    ) STRICT, WITHOUT ROWID
    ;
CREATE TABLE schema_version (version INTEGER NOT NULL) STRICT;
INSERT INTO "schema_version" VALUES(1);
CREATE TABLE sequence (value INTEGER NOT NULL) STRICT;
INSERT INTO "sequence" VALUES(0);
CREATE INDEX payloads_of_job ON payloads (server, job_id, attempt);
CREATE INDEX payloads_told ON payloads (changed) WHERE acknowledged = 0;
CREATE INDEX payloads_live ON payloads (id) WHERE ended_at IS NULL;
CREATE INDEX payloads_kept ON payloads (ended_at)
        WHERE ended_at IS NOT NULL AND cleaned_at IS NULL
    ;
CREATE INDEX payloads_cleaned ON payloads (cleaned_at) WHERE cleaned_at IS NOT NULL;
CREATE INDEX refusals_of_job ON refusals (server, job_id, attempt);
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('payloads',5);
COMMIT;
